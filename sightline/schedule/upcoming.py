"""Which images sequences have yet to compute; those that will have to be encoded soon are decoded while the device computes."""

from collections.abc import Iterator

from sightline.schedule.plan import AHEAD_SEQUENCES, extend_keys
from sightline.schedule.state import Schedule, Sequence, Status
from sightline.types import MediaItem


def upcoming_items(schedule: Schedule) -> Iterator[MediaItem]:
    """Of running sequences what they have not reached, then of the next in line; nothing whose rows or tokens are cached."""
    for sequence in schedule.running:
        if sequence.remaining > 1:
            yield from _missing(schedule, sequence, sequence.computed)
    for sequence in schedule.waiting[:AHEAD_SEQUENCES]:
        if next(_missing(schedule, sequence, 0), None) is not None:
            extend_keys(sequence)
            yield from _missing(schedule, sequence, len(schedule.pages.match(sequence.keys)) * sequence.page_size)


def needs(schedule: Schedule, sequence: Sequence, key: bytes) -> bool:
    """Whether a sequence has yet to compute tokens of the item with this key: it is not past them, nor are they cached."""
    if key not in sequence.item_keys:
        return False
    reached = sequence.computed
    if sequence.status is Status.WAITING:
        extend_keys(sequence)
        reached = len(schedule.pages.match(sequence.keys)) * sequence.page_size
    return any(own == key and end > reached for own, end in zip(sequence.item_keys, sequence.item_ends, strict=True))


def _missing(schedule: Schedule, sequence: Sequence, after: int) -> Iterator[MediaItem]:
    """Items that reach beyond the first `after` tokens and are in no cache."""
    cache = schedule.embeddings
    for key, end, item in zip(sequence.item_keys, sequence.item_ends, sequence.request.items, strict=True):
        if end > after and cache.lookup(key) is None and not cache.host_lookup(key):
            yield item
