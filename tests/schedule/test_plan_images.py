"""Single decisions of the scheduler about images: which are encoded in a step, and which ahead of it."""

import pytest

from schedule.desk import Desk, running, text
from schedule.requests import Picture, make_item
from sightline.schedule.state import Status

# ---- Images


def test_a_chunk_ends_before_an_image_that_cannot_be_encoded_yet() -> None:
    """Red if the chunk is not cut there, or is cut earlier, or if the budget of patches is not kept."""
    desk = Desk({"max_patches": 10})
    sequence = desk.one(text(3), Picture(1, 4, 6), text(2, 3), Picture(2, 4, 6), text(1, 4))
    assert desk.chunks() == [(sequence, 0, 9)]
    assert desk.chunks() == [(sequence, 9, 5)]
    desk.finish()


def test_an_image_above_the_budget_is_encoded_alone() -> None:
    """Red if it is never affordable, or if anything is encoded beside it."""
    desk = Desk({"max_patches": 10, "lookahead_patches": 100})
    large = desk.one(Picture(1, 4, 25), text(1))
    small = desk.one(Picture(2, 4, 3), text(1, 3))
    first = desk.step()
    assert [encode.item.patches for encode in first.encodes] == [25] and [c.sequence for c in first.chunks] == [large]
    second = desk.step()
    assert [encode.item.patches for encode in second.encodes] == [3] and running(small)()
    desk.finish()


def test_an_image_above_the_budget_waits_for_a_step_without_others() -> None:
    """Red if it joins an encode that is planned already."""
    desk = Desk({"max_patches": 10})
    desk.one(Picture(2, 4, 3), text(1))
    desk.one(Picture(1, 4, 25), text(1, 3))
    assert [encode.item.patches for encode in desk.step().encodes] == [3]
    assert [encode.item.patches for encode in desk.step().encodes] == [25]
    desk.finish()


def test_rows_of_a_consumed_image_can_be_reused() -> None:
    """Red if rows stay pinned after the image's last token: the arena has room for one image at a time."""
    desk = Desk(memory={"blocks": 4})
    sequence = desk.one(text(2), Picture(1, 4, 4, spans=2), text(2, 3), Picture(2, 4, 4), text(2, 4))
    assert desk.chunks() == [(sequence, 0, 9)]
    assert not sequence.pinned
    desk.finish()


def test_a_video_keeps_its_rows_until_its_last_frame() -> None:
    """Red if rows are given up after the first of an item's spans: they might be encoded again for the next."""
    desk = Desk({"max_tokens": 3})
    sequence = desk.one(Picture(1, 4, 4, spans=2), text(2))
    desk.step()
    assert sequence.computed == 3 and list(sequence.pinned) == [0]
    desk.step()
    assert sequence.computed == 6 and not sequence.pinned
    desk.finish()


def test_who_needs_rows_takes_them_from_the_lowest_that_has_some() -> None:
    """Red if `_make_room_for_rows` does not preempt, or preempts one that has no rows."""
    desk = Desk({"max_tokens": 3, "starvation_steps": 3}, {"blocks": 8})
    plain = desk.one(text(1), max_tokens=30, priority=3)
    desk.step()
    filling = desk.one(Picture(1, 8, 4), text(2, 3), priority=2)
    desk.step()
    needing = desk.one(Picture(2, 8, 4), text(2, 4))  # with the pages but without rows while the other has them
    for _ in range(3):
        assert filling.pinned and running(plain)()
        desk.step()
    assert running(needing)() and running(plain)() and filling.status is Status.WAITING
    desk.finish()


def test_who_can_move_without_rows_takes_them_from_nobody() -> None:
    """Red if a sequence preempts for an image that its chunk could just as well end before."""
    desk = Desk({"max_tokens": 3, "starvation_steps": 3}, {"blocks": 16})
    filling = desk.one(Picture(1, 16, 4), text(2, 3), priority=2)
    desk.step()
    later = desk.one(text(2, 4), Picture(2, 16, 4))
    desk.until(running(later))
    assert later.computed == 2 and running(filling)() and filling.pinned
    assert desk.schedule.preemptions == 0
    desk.finish()


def test_rows_are_not_reserved_for_one_that_has_no_page() -> None:
    """Red if rows are reserved before pages are counted.

    The fourth request then reserves the whole arena, finds no page and does not start; the three that run need rows, so nobody
    moves in that step.
    """
    desk = Desk(
        {"max_sequences": 4, "max_tokens": 2, "starvation_steps": 1},
        {"pages": 6, "page_size": 1, "blocks": 2},
    )
    for name in (3, 4, 5):
        desk.one(text(2, name), Picture(name, 2, 1), max_tokens=1)
        desk.step()
    desk.one(Picture(6, 2, 1), text(2, 6), max_tokens=1)
    desk.finish()


def test_a_hit_that_ends_inside_an_image_needs_its_rows_again() -> None:
    """Red if the rest of an image is computed without its rows, or if the hit is cut back to the image's start."""
    desk = Desk()
    desk.one(text(2), Picture(1, 8, 4), text(3, 3))
    desk.finish()
    desk.schedule.embeddings.clear()
    again = desk.one(text(2), Picture(1, 8, 4), text(3, 4))
    step = desk.step()
    assert [(chunk.start, chunk.count) for chunk in step.chunks] == [(8, 5)]
    assert [encode.item.key for encode in step.encodes] == [again.request.items[0].key]
    desk.finish()


def test_an_image_inside_a_hit_is_not_encoded() -> None:
    """Red if all items of a prompt are asked for, not those of its chunk."""
    desk = Desk({"lookahead_patches": 100})
    desk.one(text(2), Picture(1, 6, 4), text(8, 3))
    desk.finish()
    desk.schedule.embeddings.clear()
    desk.one(text(2), Picture(1, 6, 4), text(8, 3), text(4, 4))
    assert not desk.step().encodes
    desk.finish()


# ---- Looking ahead


def ahead_desk(rows: int = 12, lookahead: int = 100) -> Desk:
    desk = Desk({"max_sequences": 1, "lookahead_patches": lookahead}, {"blocks": rows})
    desk.one(text(2), max_tokens=30)
    desk.step()
    return desk


def test_looking_ahead_takes_at_most_half_of_the_arena() -> None:
    """Red if the bound goes, or if rows that were used are still counted as ahead."""
    desk = ahead_desk()
    for name in (1, 2, 3):
        desk.one(Picture(name, 3, 4), text(2, 2 + name), max_tokens=1)
    assert [encode.item.ref.source for encode in desk.step().encodes] == ["picture 1", "picture 2"]
    assert not desk.step().encodes
    desk.finish()
    assert len(desk.simulator.runner.encoded) == 3


def test_looking_ahead_is_for_the_queue_and_within_its_patches() -> None:
    """Red if the budget of patches ahead is not kept per step, or with 0 if there is looking ahead at all."""
    desk = ahead_desk(rows=40, lookahead=5)
    for name in (1, 2):
        desk.one(Picture(name, 3, 4), text(2, 2 + name), max_tokens=1)
    assert [len(desk.step().encodes) for _ in range(3)] == [1, 1, 0]
    off = ahead_desk(rows=40, lookahead=0)
    off.one(Picture(1, 3, 4), text(2, 3))
    assert not off.step().encodes


def test_looking_ahead_does_not_evict_what_it_encoded_ahead() -> None:
    """Red if rows ahead make room for other rows ahead: they would be encoded again and again while the queue waits."""
    desk = Desk({"max_sequences": 1, "max_tokens": 1, "lookahead_patches": 100}, {"blocks": 12})
    running = desk.one(Picture(9, 8, 4), text(2), max_tokens=1)  # has 8 of 12 rows pinned for 8 steps
    desk.step()
    for name in (1, 2):
        desk.one(Picture(name, 3, 4), text(2, 2 + name), max_tokens=1)
    desk.until(lambda: not running.pinned)
    assert len(desk.simulator.runner.encoded) == 2, "its own and one ahead"
    desk.finish()


def test_rows_ahead_of_an_aborted_request_do_not_count() -> None:
    """Red if what was encoded for a request that went away blocks looking ahead for others until it happens to be evicted."""
    desk = ahead_desk()
    gone = [desk.one(Picture(name, 3, 4), text(2, 2 + name), max_tokens=1) for name in (1, 2)]
    desk.step()
    for sequence in gone:
        desk.simulator.abort(desk.simulator.watched[sequence.id].request_id)
    desk.one(Picture(3, 3, 4), text(2, 6), max_tokens=1)
    assert len(desk.step().encodes) == 1
    desk.finish()


def test_looking_ahead_leaves_out_what_a_hit_will_cover() -> None:
    """Red if images are encoded ahead whose tokens are in the prefix tree, so that nobody will read their rows."""
    desk = Desk({"max_sequences": 1, "lookahead_patches": 100})
    desk.one(text(2), Picture(1, 6, 4), text(2, 3))
    desk.finish()
    desk.schedule.embeddings.clear()
    desk.one(text(2, 5), max_tokens=9)
    desk.one(text(2), Picture(1, 6, 4), text(2, 4), Picture(2, 4, 4))
    assert [encode.item.ref.source for encode in desk.step().encodes] == ["picture 2"]
    desk.finish()


# ---- Asynchronous encode


def test_images_are_encoded_asynchronously_while_an_answer_grows_and_not_before() -> None:
    """Red if the last token of another's prompt counts as an answer that grows, or if the first token of an answer does not."""
    desk = Desk({"max_tokens": 10, "async_encode": True})
    desk.one(text(11), max_tokens=3)
    assert desk.step().tokens == 10
    desk.one(Picture(1, 4, 4), text(2, 3), max_tokens=1)
    step = desk.step()
    assert [(chunk.start, chunk.count) for chunk in step.chunks] == [(10, 1), (0, 6)]
    assert [encode.side_stream for encode in step.encodes] == [False]
    desk.one(Picture(2, 4, 4), text(2, 4), max_tokens=1)
    assert [encode.side_stream for encode in desk.step().encodes] == [True]
    desk.finish()


def test_a_step_may_be_empty_while_an_image_is_encoded_asynchronously() -> None:
    """A prompt whose last token is an image of one row, and the one that decoded has just ended. Red if that is taken for a
    schedule that does not move."""
    desk = Desk({"async_encode": True})
    desk.one(text(2), max_tokens=2)
    desk.step()
    name = next(n for n in range(9) if make_item(Picture(n, 1, 4)).key[-1] % 3 == 2)  # lasts for some steps, see the simulator
    desk.one(text(3, 3), Picture(name, 1, 4))
    assert [encode.side_stream for encode in desk.step().encodes] == [True]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(desk.simulator, "_finish_encodes", lambda: None)  # nobody decodes, and yet it is not waited for
        assert not desk.step().chunks and desk.schedule.encoding
    assert len(desk.step().chunks) == 1
    desk.finish()
