"""Workloads for the simulator, all made of whole numbers that somebody picks: hypothesis, which shrinks them, or a seed."""

import random
from collections.abc import Callable

from hypothesis import strategies as st

from schedule.fake_runner import SimulatedMemory
from schedule.requests import Picture, Piece, make_item, make_request
from schedule.simulator import Arrival, Workload
from sightline.schedule.state import Limits

Pick = Callable[[int, int], int]  # a number between two, both included; the first is the plainest


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    return make_workload(lambda low, high: draw(st.integers(low, high)))


def seeded_workload(seed: int) -> Workload:
    return make_workload(random.Random(seed).randint)


def make_workload(pick: Pick) -> Workload:
    pictures = [_picture(pick, name) for name in range(pick(0, 4))]
    prompts: list[list[Piece]] = []
    arrivals: list[Arrival] = []
    at = 0
    for _ in range(pick(1, 10)):
        prompts.append(_prompt(pick, pictures, prompts))
        at += (0, 0, 1, 5)[pick(0, 3)]
        arrivals.append(_arrival(pick, at, prompts[-1]))
    broken = frozenset(make_item(picture).key for picture in pictures if pick(0, 9) == 9)
    return Workload(
        limits=_limits(pick),
        memory=_memory(pick, arrivals),
        arrivals=tuple(arrivals),
        broken=broken,
        crashes=_some_steps(pick),
        encode_crashes=_some_steps(pick),
        flushes=_some_steps(pick),
    )


def _picture(pick: Pick, name: int) -> Picture:
    rows = pick(1, 12)
    return Picture(name, rows, pick(1, 20), spans=min(rows, (1, 1, 2, 3)[pick(0, 3)]))


def _prompt(pick: Pick, pictures: list[Picture], earlier: list[list[Piece]]) -> list[Piece]:
    """Often an earlier prompt, up to some piece of it, then something of its own, or nothing: then they are equal."""
    pieces: list[Piece] = []
    kind = pick(0, 2)
    if kind and earlier:
        parent = earlier[pick(0, len(earlier) - 1)]
        pieces = parent[: pick(1, len(parent))] if kind == 1 else list(parent)
    for _ in range(pick(0 if pieces else 1, 3)):
        if pictures and pick(0, 1):
            pieces.append(pictures[pick(0, len(pictures) - 1)])
        else:
            pieces.append(tuple(pick(2, 4) for _ in range(pick(1, 7))))
    return pieces


def _arrival(pick: Pick, at: int, pieces: list[Piece]) -> Arrival:
    return Arrival(
        at=at,
        request=make_request(pieces),
        max_tokens=pick(1, 9),
        priority=(0, 0, 1, -1)[pick(0, 3)],
        salt=("", "", "", "another tenant")[pick(0, 3)],
        n=(1, 1, 1, 2, 3)[pick(0, 4)],
        abort_after=pick(0, 30) if pick(0, 6) == 6 else None,
    )


def _limits(pick: Pick) -> Limits:
    return Limits(
        max_sequences=(1, 2, 3, 64)[pick(0, 3)],
        max_tokens=(1, 2, 5, 16, 512)[pick(0, 4)],
        max_patches=(1, 10, 30, 1000)[pick(0, 3)],
        lookahead_patches=(0, 10, 1000)[pick(0, 2)],
        starvation_steps=(1, 2, 4, 16, 512)[pick(0, 4)],
    )


def _memory(pick: Pick, arrivals: list[Arrival]) -> SimulatedMemory:
    """From just enough for the largest request to room for all; now and then too little, so that some are refused."""
    page_size, block_rows = pick(1, 8), pick(1, 4)
    longest = max(-(-(len(arrival.request) + arrival.max_tokens) // page_size) for arrival in arrivals)
    rows = [item.rows for arrival in arrivals for item in arrival.request.items]
    largest = -(-max(rows, default=1) // block_rows)
    extra = (0, 1, longest, 10 * longest)[pick(0, 3)]
    pages = longest + extra if pick(0, 19) else longest - 1
    return SimulatedMemory(
        pages=max(1, pages),
        page_size=page_size,
        blocks=largest + (0, 1, largest, 10 * largest)[pick(0, 3)],
        block_rows=block_rows,
        host_bytes=(0, 30, 100, 10000)[pick(0, 3)],
    )


def _some_steps(pick: Pick) -> frozenset[int]:
    return frozenset((pick(0, 40),)) if pick(0, 9) == 9 else frozenset()
