"""Single decisions of the scheduler. Each test runs on the simulator, which checks memory, order and budgets at every step."""

import pytest

from schedule.desk import Desk, running, text
from schedule.requests import Picture, Piece, make_request
from sightline.cache.keys import embedding_key
from sightline.errors import PromptError
from sightline.schedule.progress import admit, finish
from sightline.schedule.state import Sequence, Status

# ---- Order


def test_smaller_priorities_start_first_and_equal_ones_as_they_came() -> None:
    """Red if `rank` loses the priority or the arrival, or if the queue is not kept in its order."""
    desk = Desk({"max_sequences": 1})
    late = desk.one(text(3, 2), priority=1)
    first, second = desk.one(text(3, 3)), desk.one(text(3, 4))
    urgent = desk.one(text(3, 5), priority=-1)
    order: list[Sequence] = []
    while desk.schedule.has_work:
        order += [chunk.sequence for chunk in desk.step().chunks if chunk.sequence not in order]
    assert order == [urgent, first, second, late]


def test_nobody_overtakes_one_that_does_not_fit() -> None:
    """Red if `_start_waiting` goes on to the next sequence after one that could not start."""
    desk = Desk({"max_patches": 10})
    desk.one(Picture(1, 4, 10), text(2))
    pictured = desk.one(Picture(2, 4, 5), text(2))  # its picture is beyond this step's patches
    small = desk.one(text(2, 3))
    desk.step()
    assert not running(pictured)() and not running(small)()
    desk.step()
    assert running(pictured)() and running(small)()
    desk.finish()


def test_decoding_goes_before_filling() -> None:
    """Red if a long prompt takes the tokens of answers that wait for one each."""
    desk = Desk({"max_tokens": 4})
    low = desk.one(text(2), priority=1)
    desk.step()
    high = desk.one(text(20, 3))
    assert desk.chunks() == [(low, 2, 1), (high, 0, 3)]
    desk.finish()


# ---- Patience


def test_a_boosted_request_takes_a_place_from_a_veteran_only() -> None:
    """Red if the place is taken at once, if it is never taken, or if a boosted sequence has no rank above priorities."""
    desk = Desk({"max_sequences": 1, "starvation_steps": 5})
    desk.one(text(3), max_tokens=3)
    desk.step()
    patient = desk.one(text(3, 4), priority=1, max_tokens=2)  # from step 6 on it goes before all others
    desk.until(lambda: not desk.schedule.running)
    veteran = desk.one(text(3, 3), max_tokens=30, priority=-1)
    desk.step()
    began = veteran.running_since
    assert began < 6
    desk.until(running(patient))
    assert desk.schedule.step == began + 5, "the veteran had its five steps, and no more"
    assert patient.boosted and veteran.status is Status.WAITING and len(veteran.output) == 5
    desk.finish()


def test_a_turn_ends_only_after_a_token() -> None:
    """Red if a veteran is who ran long enough, with or without a token.

    Two requests of more tokens than a turn has steps then take the place from each other for ever: the page that one fills is
    not full when it loses it, so each begins again at its first token.
    """
    desk = Desk({"max_sequences": 1, "max_tokens": 1, "starvation_steps": 2}, {"page_size": 8})
    desk.one(text(7, 2))
    desk.one(text(7, 3))
    desk.finish()


def test_a_stream_of_urgent_requests_does_not_starve_another() -> None:
    """Red if the boost goes: with urgent requests always waiting, one of low priority would never start."""
    patience, answer = 10, 5
    desk = Desk({"max_sequences": 1, "starvation_steps": patience})
    urgent = [desk.one(text(3, 3), max_tokens=answer, priority=-1)]
    patient = desk.one(text(3), priority=1)
    for step in range(patience + answer + 1):
        urgent.append(desk.one(text(3, 4 + step), max_tokens=answer, priority=-1))
        desk.step()
    assert running(patient)() or patient.output


def test_a_waiting_follower_does_not_keep_others_from_their_turn() -> None:
    """Red if `_start_starving` looks at the longest-waiting sequence only, which may be one that may not start yet.

    The leader loses its pages before its first token, so its follower has waited longer than it; only a boost brings the leader
    back while urgent requests keep coming.
    """
    desk = Desk({"max_sequences": 2, "max_tokens": 4, "starvation_steps": 12}, {"pages": 8, "page_size": 4})
    desk.one(text(3), max_tokens=29)
    desk.step()
    leader, follower = desk.add(text(24, 3), max_tokens=2, priority=5, n=2)
    desk.step()
    assert running(leader)()
    desk.until(lambda: leader.status is Status.WAITING)
    assert not leader.output and not follower.may_start
    lost = desk.schedule.step
    while not leader.output:
        assert desk.schedule.step - lost <= 60, "the leader starves behind its own follower"
        if len(desk.schedule.waiting) < 4:
            desk.one(text(12, 4 + desk.schedule.step), max_tokens=8)
        desk.step()
    desk.finish()


# ---- Groups


def test_a_follower_waits_for_its_leader_and_then_computes_one_token() -> None:
    """Red if followers start with their leader (they would compute the prompt as often) or do not find its pages."""
    desk = Desk()
    leader, *followers = desk.add(text(8), n=3)
    assert desk.chunks() == [(leader, 0, 8)]
    assert sorted((s.id, start, count) for s, start, count in desk.chunks() if s is not leader) == [
        (follower.id, 7, 1) for follower in followers
    ]
    assert [follower.cached_tokens for follower in followers] == [7, 7]
    desk.finish()


def test_a_follower_of_an_aborted_leader_starts() -> None:
    """Red if `may_start` asks for the leader's answer only."""
    desk = Desk({"max_tokens": 2})
    leader, follower = desk.add(text(8), n=2)
    desk.step()
    finish(desk.schedule, leader)
    desk.simulator.watched[leader.id].cut = True
    desk.finish()
    assert len(follower.output) > 0


def test_answers_to_one_prompt_can_take_pages_from_each_other() -> None:
    """Red if answers of a group have equal ranks: each lacks a page, none is below another, and the step is empty."""
    desk = Desk(memory={"pages": 4, "page_size": 2})
    desk.add(text(3), max_tokens=5, n=3)
    desk.finish()
    assert desk.schedule.preemptions > 0


# ---- Pages


def test_the_victim_is_the_lowest_ranked() -> None:
    """Red if another than the lowest-ranked running sequence gives its pages."""
    desk = Desk(memory={"pages": 9, "page_size": 2})
    high, middle, low = (desk.one(text(5, 3 + i), max_tokens=8, priority=i) for i in range(3))
    desk.until(lambda: desk.schedule.preemptions > 0)
    assert low.status is Status.WAITING and running(high)() and running(middle)()
    desk.finish()


def test_a_preempted_answer_goes_on_where_it_was() -> None:
    """Red if a token is sampled twice or lost: the simulator compares each answer with one made without a scheduler."""
    desk = Desk(memory={"pages": 6, "page_size": 2})
    high, low = desk.one(text(3, 3), max_tokens=9), desk.one(text(3, 4), max_tokens=9)
    desk.until(lambda: low.starts == 2)
    assert low.output and high.status is Status.FINISHED
    desk.finish()


def test_a_full_hit_computes_one_token_into_the_scratch_page() -> None:
    """Red if more is computed, if a shared page is written, or if nothing is (then there are no logits)."""
    desk = Desk()
    desk.one(text(8), max_tokens=1)
    desk.finish()
    again = desk.one(text(8), max_tokens=1)
    stored = list(desk.simulator.runner.kv)
    step = desk.step()
    assert [(chunk.start, chunk.count) for chunk in step.chunks] == [(7, 1)] and again.cached_tokens == 7
    written = [slot for slot, value in enumerate(desk.simulator.runner.kv) if value != stored[slot]]
    assert written == [3], "the fourth slot of page 0"


def test_pages_are_shared_only_when_they_are_computed() -> None:
    """Red if a page joins the tree before its last token is computed: an equal prompt would read half of it."""
    desk = Desk({"max_tokens": 6})
    desk.one(text(12), max_tokens=1)
    desk.step()
    again = desk.one(text(12), max_tokens=1)
    desk.step()  # the first one's last six
    desk.step()
    assert again.cached_tokens == 11
    desk = Desk({"max_tokens": 10})
    desk.one(text(12), max_tokens=1)
    again = desk.one(text(12), max_tokens=1)
    desk.step()
    desk.step()
    assert again.cached_tokens == 8, "two of three pages were computed when it started"
    desk.finish()


def test_the_next_turn_finds_the_answer_too() -> None:
    """Red if pages of an answer have other keys than the same tokens have in a prompt."""
    desk = Desk()
    first = desk.one(Picture(1, 3, 4), text(2), max_tokens=12)
    desk.finish()
    turn = desk.one(Picture(1, 3, 4), text(2), tuple(first.output), text(2, 3))
    desk.step()
    assert turn.cached_tokens == 16, "all pages that were computed: the last token of an answer never is"
    desk.finish()


def test_another_tenant_shares_no_page() -> None:
    """Red if the root is left out of the keys."""
    desk = Desk()
    desk.one(text(8), max_tokens=1)
    desk.finish()
    other = desk.one(text(8), max_tokens=1, salt="another tenant")
    desk.step()
    assert other.cached_tokens == 0


# ---- Refusals


@pytest.mark.parametrize(
    ("pieces", "answer", "said"),
    [
        ((text(30),), 11, "The prompt's 30 tokens and 11 of an answer need 11 pages of the key/value cache, which has 10."),
        (
            (text(2), Picture(7, 9, 4)),
            1,
            "Image picture 7 needs 9 embedding rows, more than the 8 that the embedding cache holds.",
        ),
    ],
)
def test_what_never_fits_is_refused_and_holds_nothing(pieces: tuple[Piece, ...], answer: int, said: str) -> None:
    """Red if it is queued, if a sibling of it is, or if the sentence does not say what is too large."""
    desk = Desk(memory={"pages": 10, "blocks": 8})
    request = make_request(pieces)
    keys = tuple(embedding_key(item.key, "cpu") for item in request.items)
    group: list[Sequence] = []
    for number in range(2):
        leader = group[0] if group else None
        group.append(Sequence(number, request, answer, 0, 0, bytes(32), keys, page_size=4, leader=leader))
    with pytest.raises(PromptError) as refusal:
        admit(desk.schedule, group)
    assert str(refusal.value) == said
    assert not desk.schedule.has_work and not desk.schedule.queue_order
    desk.schedule.check_integrity()


def test_what_just_fits_runs() -> None:
    """Red if admission asks for more than the largest request that can run."""
    desk = Desk(memory={"pages": 10, "blocks": 8})
    desk.one(text(22), Picture(7, 8, 4), max_tokens=10)
    desk.finish()
