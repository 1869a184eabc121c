"""Prompts that end inside a page, found again: page size 4, on the simulator, which checks what is read at every step."""

import numpy as np
import pytest

from schedule.desk import Desk, running, text
from schedule.requests import Picture
from schedule.simulator import Simulator
from schedule.workloads import seeded_workload
from sightline.engine.pack import page_copies
from sightline.schedule.progress import finish
from sightline.schedule.state import Sequence, Status


def ask(desk: Desk, *pieces: object, **options: object) -> Sequence:
    """A request that runs to its end."""
    sequence = desk.one(*pieces, **options)  # type: ignore[arg-type]
    desk.until(lambda: sequence.status is Status.FINISHED)
    return sequence


@pytest.mark.parametrize("tail", [1, 2, 3, 4])
@pytest.mark.parametrize("answer", [1, 2, 7], ids=["in the page", "to its end", "beyond it"])
def test_the_same_prompt_again_computes_one_token(tail: int, answer: int) -> None:
    """Red if the last tokens of a prompt are known only where they fill a page, or only until an answer fills it."""
    desk = Desk()
    first = ask(desk, text(8 + tail), max_tokens=answer)
    again = desk.one(text(8 + tail), max_tokens=answer)
    assert [(chunk.start, chunk.count) for chunk in desk.step().chunks] == [(7 + tail, 1)]
    assert (first.cached_tokens, again.cached_tokens) == (0, 7 + tail)
    desk.finish()


def test_a_shorter_prompt_without_a_full_page_is_found_too() -> None:
    """Red if the first page of all has no beginning, or one that other tenants find."""
    desk = Desk()
    found = [ask(desk, text(3), max_tokens=1, salt=salt).cached_tokens for salt in ("", "", "b", "b")]
    assert found == [0, 2, 0, 2]
    desk.finish()


def test_pictures_are_told_apart_inside_a_page() -> None:
    """Red if the rows that stand in a page's beginning are not in its key: placeholder ids are equal for all pictures."""
    desk = Desk()
    pieces = (text(4), Picture(1, 2, 4))
    found = [ask(desk, *pieces[:1], Picture(name, 2, 4), text(1, 3)).cached_tokens for name in (1, 2, 1)]
    assert found == [0, 4, 6]
    desk.finish()


def test_the_page_is_copied_and_its_owner_keeps_it() -> None:
    """Red if two that go on from one beginning write to one page, or if a page is copied that is known as a whole."""
    desk = Desk()
    ask(desk, text(6), max_tokens=1)
    one, two = desk.one(text(6), text(3, 4)), desk.one(text(6), text(3, 5))
    shared = desk.schedule.pages.beginnings
    step = desk.step()
    assert [(chunk.sequence, chunk.start, chunk.count) for chunk in step.chunks] == [(one, 6, 3), (two, 6, 3)]
    assert desk.simulator.runner.copied == 2 and page_copies(step.chunks) is None, "copied once"
    assert one.copies is None and two.copies is None and len(shared._known) > 0
    desk.finish()


def test_which_pages_are_copied_is_told_with_the_step() -> None:
    """Red if a step names other pages than the one that is known and the sequence's own."""
    desk = Desk()
    ask(desk, text(6), max_tokens=1)
    known = next(iter(desk.schedule.pages.beginnings._known.values())).node
    again = desk.one(text(6), text(3, 4))
    told: list[list[int]] = []
    compute = desk.simulator.runner.compute

    def note(chunks: tuple, *rest: object) -> object:
        pairs = page_copies(chunks)
        assert pairs is not None and pairs.dtype == np.int64
        told.extend(pairs.tolist())
        return compute(chunks, *rest)  # type: ignore[arg-type]

    desk.simulator.runner.compute = note  # type: ignore[assignment, method-assign]
    desk.step()
    assert told == [[known.page, int(again.page_table[1])]]


def test_the_next_turn_goes_on_inside_a_page_of_the_answer() -> None:
    """Red if the page that an answer ended in is thrown away."""
    desk = Desk()
    first = ask(desk, text(5), max_tokens=7)
    turn = desk.one(text(5), tuple(first.output), text(2, 3))
    desk.step()
    assert turn.cached_tokens == 11, "5 and 6: the last token of an answer is never computed"
    desk.finish()


def test_one_that_lost_its_place_goes_on_inside_a_page() -> None:
    """Red if a preempted sequence computes again what is still there."""
    desk = Desk({"max_sequences": 1, "starvation_steps": 3}, {"page_size": 8})
    loser = desk.one(text(9), max_tokens=9)
    desk.until(lambda: len(loser.output) == 4)
    desk.one(text(3, 5), max_tokens=2)
    desk.until(lambda: loser.status is Status.WAITING)
    computed = loser.known - 1
    desk.until(running(loser))
    assert loser.starts == 2 and loser.computed == computed + 1
    desk.finish()


def test_the_last_page_to_be_had_is_the_known_one() -> None:
    """Red if a sequence locks the page that it is to copy and then has none to copy it to: nothing would ever move again."""
    desk = Desk(memory={"pages": 2})
    ask(desk, text(7), max_tokens=1)
    again = desk.one(text(7), max_tokens=1)
    assert [(chunk.start, chunk.count) for chunk in desk.step().chunks] == [(6, 1)]
    assert again.cached_tokens == 6 and desk.simulator.runner.copied == 0
    desk.finish()


def test_what_is_to_be_copied_stays_until_it_is() -> None:
    """Red if the page can be given to somebody else, or the sequence's own counts as filled, before the step that copies."""
    desk = Desk(memory={"pages": 6})
    ask(desk, text(7), max_tokens=1)
    again = desk.one(text(7))  # goes on after two tokens of the page
    desk.simulator.workload = desk.simulator.workload.__class__(
        **{**vars(desk.simulator.workload), "crashes": frozenset({desk.schedule.step + 1})}
    )
    known = set(desk.schedule.pages.beginnings._known)
    desk.step()  # fails: what it was to copy was not copied
    assert again.status is Status.FINISHED and set(desk.schedule.pages.beginnings._known) == known
    desk.finish()


def test_an_aborted_one_gives_back_what_it_was_to_copy() -> None:
    """Red if a lock stays: the simulator counts them."""
    desk = Desk({"max_tokens": 4})
    ask(desk, text(6), max_tokens=1)
    again = desk.one(text(6), text(9, 4))
    desk.step()
    finish(desk.schedule, again)
    desk.simulator.watched[again.id].cut = True
    desk.finish()


def test_states_begin_at_whole_pages() -> None:
    """Red if a model whose layers keep states goes on inside a page: a token would be taken into a state twice."""
    copied = 0
    for seed in range(40):
        simulator = Simulator(seeded_workload(seed), snapshots=3)
        simulator.run()
        copied += simulator.runner.copied + len(simulator.schedule.pages.beginnings._known)
    assert copied == 0


def test_workloads_copy_pages() -> None:
    """Red if the random workloads no longer try it."""
    copied = 0
    for seed in range(40):
        simulator = Simulator(seeded_workload(seed), overlap=True, real_batches=True)
        simulator.run()
        copied += simulator.runner.copied
    assert copied > 20
