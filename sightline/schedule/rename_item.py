"""An item of sequences gets another key: its embeddings are made by another decoder than the key says."""

from collections.abc import Iterable

from sightline.schedule.plan import preempt
from sightline.schedule.state import Schedule, Sequence, Status


def rename_item(schedule: Schedule, sequences: Iterable[Sequence], old: bytes, new: bytes) -> None:
    """`sequences` are all that have not ended, in the schedule or not yet in it.

        tokens of a page   t t t t | t t v v | v v t t        an item at token 6
        its key            stays   | made anew | made anew

    Whoever has computed tokens of the item has pages of the old key, which stay true and stay in the tree; it starts again,
    so that no page follows from embeddings of both.
    """
    for sequence in [one for one in sequences if old in one.item_keys]:
        first = min(span.start for span in sequence.request.spans if sequence.item_keys[span.item] == old)
        if sequence.status is Status.RUNNING and sequence.computed > first:
            preempt(schedule, sequence)
        sequence.item_keys = tuple(new if key == old else key for key in sequence.item_keys)
        del sequence.keys[first // sequence.page_size :]
    schedule.changes += 1
