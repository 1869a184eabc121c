"""Room in memory for requests: who gets it, in which order, and that everybody does."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sightline.server.admission import AdmissionBudget, ClientGone, Entry
from sightline.server.errors import ApiError

MOST = 1000  # bytes of all budgets here


def budget(queue_timeout_s: float = 60.0, requests: int = 100) -> AdmissionBudget:
    return AdmissionBudget(MOST / 1e6, requests, queue_timeout_s)


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@dataclass(frozen=True)
class Asked:
    """A request: pieces that it grows by if `most` is given, else their sum at once; then what it settles to, and for how many
    turns of the loop it goes on."""

    pieces: Sequence[int]
    most: int | None
    settled: float  # share of what it held
    turns: int


@st.composite
def requests(draw: st.DrawFn) -> Asked:
    grows = draw(st.booleans())
    most = draw(st.sampled_from([300, 600, MOST]))
    pieces = draw(st.lists(st.integers(1, 200), min_size=1, max_size=8))
    while sum(pieces) > most:
        pieces.pop()
    return Asked(pieces or [most], most if grows else None, draw(st.floats(0, 1)), draw(st.integers(0, 5)))


async def run_all(asked: Sequence[Asked]) -> None:
    admission = budget()

    async def run(one: Asked) -> None:
        with admission.open() as entry:
            if one.most is None:
                await entry.reserve(sum(one.pieces))
            else:
                for piece in one.pieces:
                    await entry.grow(piece, one.most)
                    assert admission.bytes <= MOST
                    await turns(1)
            assert admission.bytes <= MOST and entry.bytes == sum(one.pieces)
            await turns(one.turns)
            admission.check_integrity()
            entry.settle(int(one.settled * entry.bytes))
            admission.check_integrity()
            await turns(one.turns)

    async with asyncio.timeout(10):
        await asyncio.gather(*map(run, asked))
    admission.check_integrity()
    assert (admission.bytes, admission.requests, admission.waiting) == (0, 0, 0)


@given(st.lists(requests(), max_size=30))
def test_everybody_gets_on_and_nobody_gets_too_much(asked: list[Asked]) -> None:
    """Red when growing requests hold all there is and wait for each other, or when more is given than there is."""
    asyncio.run(run_all(asked))


def test_growing_requests_do_not_lock_each_other_out() -> None:
    """Ten that will need 300 each. Red when all are given what they ask for as long as there is some."""
    asyncio.run(run_all([Asked([50] * 6, 300, 1.0, 3)] * 10))


@given(st.lists(st.tuples(st.integers(1, 500), st.integers(1, 300)), max_size=20))
def test_bodies_that_fill_all_room_and_then_grow(asked: list[tuple[int, int]]) -> None:
    """As those that name media to be fetched may. Red when each waits for another to end, or when more than one goes beyond
    what there is."""

    async def run() -> None:
        admission = budget()

        async def one(size: int, more: int) -> None:
            with admission.open() as entry:
                await entry.reserve(size)
                await turns(3)
                await asyncio.gather(*(entry.grow(count, 800) for count in (more // 2, more - more // 2)))
                assert admission.bytes <= MOST + 300
                await turns(2)

        async with asyncio.timeout(10):
            await asyncio.gather(*(one(*each) for each in asked))
        assert (admission.bytes, admission.waiting) == (0, 0)
        admission.check_integrity()

    asyncio.run(run())


@given(st.lists(st.integers(0, MOST), max_size=30))
def test_new_ones_are_let_in_in_order_of_arrival(sizes: list[int]) -> None:
    """Red when a small one passes a large one, which might then never get in."""

    async def run() -> None:
        admission, order = budget(), list[int]()

        async def one(number: int, size: int) -> None:
            with admission.open() as entry:
                await entry.reserve(size)
                order.append(number)
                await turns(size % 4)

        async with asyncio.timeout(10):
            await asyncio.gather(*(one(number, size) for number, size in enumerate(sizes)))
        assert order == sorted(order)

    asyncio.run(run())


def test_growing_ones_go_before_new_ones() -> None:
    """Red when new ones take what the one in front of them needs to get on."""

    async def run() -> None:
        admission, order = budget(), list[str]()

        async def then(name: str, wish: Awaitable[None]) -> None:
            await wish
            order.append(name)

        with contextlib.ExitStack() as stack:
            holder, growing, small = (stack.enter_context(admission.open()) for _ in range(3))
            await holder.reserve(700)
            await growing.grow(200, 600)
            more = asyncio.create_task(then("growing", growing.grow(400, 600)))
            await turns(2)
            new = asyncio.create_task(then("new", small.reserve(50)))
            await turns(2)
            assert order == [] and admission.waiting == 2
            holder.settle(100)
            await asyncio.gather(more, new)
        assert order == ["growing", "new"]

    asyncio.run(run())


async def _cancelled(wish: Callable[[Entry, "asyncio.Future[None]"], Awaitable[None]], entry: Entry) -> None:
    task = asyncio.ensure_future(wish(entry, asyncio.get_running_loop().create_future()))
    await turns(2)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def _left(wish: Callable[[Entry, "asyncio.Future[None]"], Awaitable[None]], entry: Entry) -> None:
    left = asyncio.get_running_loop().create_future()
    task = asyncio.ensure_future(wish(entry, left))
    await turns(2)
    left.set_result(None)
    with pytest.raises(ClientGone):
        await task


@pytest.mark.parametrize("leave", [_cancelled, _left])
@pytest.mark.parametrize("grows", [False, True])
def test_who_leaves_the_line_frees_its_place(leave: Callable[..., Awaitable[None]], grows: bool) -> None:
    """Red when those behind wait for it."""

    async def run() -> None:
        admission = budget()
        with admission.open() as holder, admission.open() as large, admission.open() as small:
            await holder.reserve(500)

            def wish(entry: Entry, left: "asyncio.Future[None]") -> Awaitable[None]:
                return entry.grow(600, 900, left) if grows else entry.reserve(600, left)

            leaving = asyncio.create_task(leave(wish, large))
            await turns(1)
            behind = asyncio.create_task(small.reserve(100))
            await leaving
            await asyncio.wait_for(behind, 5)
            assert admission.waiting == 0 and admission.bytes == 600
            admission.check_integrity()

    asyncio.run(run())


def test_patience_has_an_end() -> None:
    """429 and when to come back; waits of one request are counted together. What can never fit does not wait at all."""

    async def run() -> None:
        admission = budget(queue_timeout_s=0.2)
        with admission.open() as holder, admission.open() as other:
            await holder.reserve(900)
            for _ in range(2):
                begun = asyncio.get_running_loop().time()
                with pytest.raises(ApiError) as refused:
                    await other.reserve(200)
            assert asyncio.get_running_loop().time() - begun < 0.1 and 0.19 <= other.waited_s < 5
            assert (refused.value.status, refused.value.headers) == (429, {"Retry-After": "1"})
            assert "(max_inflight_mb)" in refused.value.message and "for 0.2 s (queue_timeout_s)" in refused.value.message
            with admission.open() as third:  # side by side, which is one wait
                wants = [third.grow(200, 500) for _ in range(5)]
                await asyncio.gather(*wants, return_exceptions=True)
                assert 0.19 <= third.waited_s < 0.5
            with pytest.raises(ApiError) as refused:
                await other.reserve(MOST + 1)
            assert refused.value.status == 413
            with pytest.raises(ApiError) as refused:
                await holder.grow(101, MOST)
            assert refused.value.status == 413
            assert admission.waiting == 0 and admission.bytes == 900

    asyncio.run(run())


def test_no_patience_at_all() -> None:
    async def run() -> None:
        admission = budget(queue_timeout_s=0, requests=2)
        with admission.open() as holder, admission.open() as other:
            await holder.reserve(900)
            with pytest.raises(ApiError) as refused:
                await other.reserve(101)
            assert refused.value.status == 429 and "queue_timeout_s" not in refused.value.message
            await other.reserve(100)
            with pytest.raises(ApiError) as refused:
                admission.open()
            assert refused.value.status == 429 and "max_inflight_requests" in refused.value.message

    asyncio.run(run())
