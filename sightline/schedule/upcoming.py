"""Which images sequences have yet to compute; those that will have to be encoded soon are decoded while the device computes."""

from collections.abc import Iterator

from sightline.schedule.plan import AHEAD_SEQUENCES
from sightline.schedule.prefix import cached_tokens
from sightline.schedule.state import Schedule, Sequence, Status
from sightline.types import MediaItem

MOST_LOOKED_AT = 64  # sequences in the queue


def upcoming_items(schedule: Schedule) -> Iterator[MediaItem]:
    """Of running sequences what they have not reached, then of the next in line; nothing whose embeddings or tokens are cached.

    Who waits for pixels already does not count among the next in line, or a few slow files would keep all others from theirs.
    """
    for sequence in schedule.running:
        if not sequence.decoding:
            yield from _missing(schedule, sequence, sequence.computed)
    room = AHEAD_SEQUENCES
    for sequence in schedule.waiting[:MOST_LOOKED_AT]:
        first = next(_missing(schedule, sequence, 0), None)
        if first is not None:
            room += schedule.pixels_pending(first)
            yield from _missing(schedule, sequence, cached_tokens(schedule, sequence))
        room -= 1
        if not room:
            return


def needs(schedule: Schedule, sequence: Sequence, key: bytes) -> bool:
    """Whether a sequence has yet to compute tokens of the item with this key: it is not past them, nor are they cached."""
    if key not in sequence.item_keys:
        return False
    reached = sequence.computed
    if sequence.status is Status.WAITING:
        reached = cached_tokens(schedule, sequence)
    return any(own == key and end > reached for own, end in zip(sequence.item_keys, sequence.item_ends, strict=True))


def _missing(schedule: Schedule, sequence: Sequence, after: int) -> Iterator[MediaItem]:
    """Items that reach beyond the first `after` tokens and are in no cache."""
    cache = schedule.embeddings
    for key, end, item in zip(sequence.item_keys, sequence.item_ends, sequence.request.items, strict=True):
        if end > after and cache.lookup(key) is None and not cache.host_lookup(key):
            yield item
