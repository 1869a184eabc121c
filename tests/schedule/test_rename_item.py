"""An item whose embeddings are made by another decoder than its key said. The simulator computes values from keys: a page of
one decoder that is found by the other turns these red, as does a page that follows from embeddings of both."""

import pytest

from schedule.desk import Desk, text
from schedule.fake_runner import truth_of
from schedule.requests import Picture
from sightline.cache.keys import embedding_key
from sightline.schedule.rename_item import rename_item
from sightline.schedule.state import Sequence, Status


def rename(desk: Desk, item_key: bytes, *others: Sequence) -> bytes:
    """As the engine does, for all that are in the schedule, and others. Returns the old key."""
    old, new = embedding_key(item_key, "cpu"), embedding_key(item_key, "gpu")
    live = [*desk.schedule.running, *desk.schedule.waiting, *others]
    affected = [sequence for sequence in live if old in sequence.item_keys]
    rename_item(desk.schedule, live, old, new)
    for sequence in affected:
        assert old not in sequence.item_keys and new in sequence.item_keys
        simulator = desk.simulator
        simulator.truths[sequence.id] = truth_of(sequence, simulator.indices[sequence.id], None)
    desk.schedule.check_integrity()
    return old


@pytest.mark.parametrize("steps", [1, 2, 3, 4])
def test_whoever_has_begun_with_the_item_starts_again(steps: int) -> None:
    """Tokens 0 to 5 are text, 6 to 17 the picture's; four are computed in a step. Red when a sequence goes on behind pages of
    the old key, when one that has not reached the item loses what it has, or when a later page keeps its old key."""
    desk = Desk({"max_tokens": 4})
    sequence = desk.one(text(6), Picture(3, 12, 5), text(5, 4))
    for _ in range(steps):
        desk.step()
    computed, pages = sequence.computed, len(sequence.nodes)
    assert computed == 4 * steps
    rename(desk, sequence.request.items[0].key)
    begun = computed > 6
    assert (sequence.status is Status.WAITING) == begun and desk.schedule.preemptions == begun
    assert sequence.computed == (0 if begun else computed) and len(sequence.nodes) == (0 if begun else pages)
    assert len(sequence.keys) <= 6 // 4
    desk.finish()


def test_each_key_keeps_its_own() -> None:
    """Red when those who wait are forgotten, when one without the item is touched, or when pages and embeddings of the first
    key are found by the second, or the other way round."""
    desk = Desk({"max_tokens": 4, "max_sequences": 2})
    picture = Picture(3, 12, 5)
    first, plain = desk.one(text(6), picture, text(5, 4)), desk.one(text(20, 7))
    waiting = desk.one(text(6), picture, text(5, 5))
    for _ in range(5):
        desk.step()
    before = plain.status, list(plain.keys), plain.item_keys
    old = rename(desk, first.request.items[0].key)
    assert (plain.status, plain.keys, plain.item_keys) == before and waiting.status is Status.WAITING
    again = desk.one(text(6), picture, text(5, 4))  # with the first key: what was computed of it is there still
    assert again.item_keys == (old,)
    desk.finish()
    assert desk.simulator.runner.encoded.count(old) <= 1 and again.cached_tokens >= 4
