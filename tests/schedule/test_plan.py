"""Single decisions of the scheduler. Each test runs on the simulator, which checks memory, order and budgets at every step."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from schedule.fake_runner import Memory
from schedule.requests import Picture, Piece, make_request
from schedule.simulator import Arrival, Simulator, Workload
from sightline.errors import PromptError
from sightline.schedule.progress import admit, finish
from sightline.schedule.state import Limits, Sequence, Status, Step

LIMITS = Limits(max_sequences=8, max_tokens=64, max_patches=1000, lookahead_patches=0, starvation_steps=1000)
MEMORY = Memory(pages=60, page_size=4, blocks=40)

Change = dict[str, int]


def text(count: int, first: int = 2) -> tuple[int, ...]:
    """Tokens that are the same in no other text with another `first`."""
    return tuple(range(100 * first, 100 * first + count))


class Desk:
    """A simulator to which requests are handed one by one."""

    def __init__(self, limits: Change | None = None, memory: Change | None = None) -> None:
        workload = Workload(replace(LIMITS, **(limits or {})), replace(MEMORY, **(memory or {})), (), end_token=None)
        self.simulator = Simulator(workload)
        self.schedule = self.simulator.schedule

    def add(self, *pieces: Piece, max_tokens: int = 4, priority: int = 0, n: int = 1, salt: str = "") -> list[Sequence]:
        arrival = Arrival(0, make_request(pieces), max_tokens, priority, salt, n)
        request_id = self.simulator.add(arrival)
        assert request_id is not None
        return self.simulator.requests[request_id]

    def one(self, *pieces: Piece, max_tokens: int = 4, priority: int = 0, salt: str = "") -> Sequence:
        return self.add(*pieces, max_tokens=max_tokens, priority=priority, salt=salt)[0]

    def step(self) -> Step:
        return self.simulator.step()

    def chunks(self) -> list[tuple[Sequence, int, int]]:
        """What the next step computes."""
        return [(chunk.sequence, chunk.start, chunk.count) for chunk in self.step().chunks]

    def until(self, done: Callable[[], bool], most: int = 500) -> int:
        """Steps until something is so."""
        for count in range(most):
            if done():
                return count
            self.step()
        raise AssertionError(f"not so after {most} steps")

    def finish(self) -> None:
        self.until(lambda: not self.schedule.has_work)
        self.simulator.check_end()


def running(sequence: Sequence) -> Callable[[], bool]:
    return lambda: sequence.status is Status.RUNNING


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
    keys = tuple(bytes(8) + item.key for item in request.items)
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
