"""Whole workloads through the scheduler. What is checked at every step, and which bounds hold, is in simulator.py.

Red with almost any mistake in schedule/: a page shared before it is computed, a lock, pin or page not given back, a token
computed twice or never, rows read that are not there, a step without work, a sequence that waits for ever.
"""

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings

from schedule.simulator import Simulator, Workload
from schedule.workloads import seeded_workload, workloads
from sightline.schedule.state import Step

QUIET = {"deadline": None, "suppress_health_check": list(HealthCheck)}
BATCHES = 20


def with_async_encode(workload: Workload) -> Workload:
    """The same with images encoded beside the steps of those that decode."""
    return replace(workload, limits=replace(workload.limits, async_encode=True))


late = pytest.mark.parametrize("overlap", [False, True], ids=["in turn", "overlapped"])


@late
@settings(max_examples=600, **QUIET)
@given(workload=workloads())
def test_any_workload(workload: Workload, overlap: bool) -> None:
    Simulator(with_async_encode(workload) if overlap else workload, overlap=overlap).run()


@pytest.mark.slow
@late
@settings(max_examples=8000, **QUIET)
@given(workload=workloads())
def test_any_workload_at_length(workload: Workload, overlap: bool) -> None:
    Simulator(with_async_encode(workload) if overlap else workload, overlap=overlap).run()


@late
@settings(max_examples=150, **QUIET)
@given(workload=workloads())
def test_any_workload_through_real_batches(workload: Workload, overlap: bool) -> None:
    """Red if pack_batch gives other slots, pages, tokens or rows than the plan means."""
    Simulator(workload, real_batches=True, overlap=overlap).run()


@late
@settings(max_examples=150, **QUIET)
@given(workload=workloads())
def test_any_workload_with_drafts(workload: Workload, overlap: bool) -> None:
    """Red if a token that was guessed wrong stays, is counted as computed, or its page is shared."""
    Simulator(workload, real_batches=True, overlap=overlap, drafts=3).run()


@pytest.mark.parametrize("seed", [3976, 4479, 5372])
def test_drafts_of_one_that_lost_its_place(seed: int) -> None:
    """Red if drafts that were made before a sequence was preempted are tried after it starts again, where fewer may be left."""
    Simulator(seeded_workload(seed), overlap=True, drafts=3).run()


@late
@pytest.mark.parametrize("snapshots", [0, 1, 3, 100])
@settings(max_examples=150, **QUIET)
@given(workload=workloads())
def test_any_workload_with_states(workload: Workload, snapshots: int, overlap: bool) -> None:
    """Red if a sequence goes on from another's state, from one that has taken its last token, or from one that was
    overwritten; if a chunk passes a place where a snapshot was wanted, or a slot is lost."""
    Simulator(with_async_encode(workload) if overlap else workload, overlap=overlap, snapshots=snapshots).run()


def test_workloads_go_on_from_snapshots() -> None:
    """Red if nothing is ever resumed, no snapshot ever makes room for another, or none goes along with an answer."""
    resumed = evicted = along = 0
    for seed in range(100):

        def note(simulator: Simulator, step: Step) -> None:
            nonlocal resumed, along
            along += sum(sequence.kept_in_answer is not None for sequence in simulator.schedule.running)
            resumed += sum(chunk.start > 0 and chunk.sequence.running_since == step.number for chunk in step.chunks)

        simulator = Simulator(seeded_workload(seed), snapshots=2, on_step=note)
        simulator.run()
        evicted += simulator.schedule.pages.state_evictions
    assert resumed > 20 and evicted > 10 and along > 10, (resumed, evicted, along)


@pytest.mark.parametrize("batch", range(BATCHES))
def test_seeded_workloads(batch: int) -> None:
    """The same workloads without hypothesis, which takes longer to choose one than it takes to run."""
    run_seeds(batch * 100, 100)


@pytest.mark.slow
@pytest.mark.parametrize("batch", range(BATCHES))
def test_more_seeded_workloads(batch: int) -> None:
    run_seeds(10_000 + batch * 1000, 1000)


def run_seeds(first: int, count: int) -> None:
    for seed in range(first, first + count):
        try:
            workload = with_async_encode(seeded_workload(seed)) if seed % 4 > 1 else seeded_workload(seed)
            Simulator(workload, overlap=seed % 2 == 1, drafts=2 if seed % 5 == 0 else 0).run()
        except AssertionError as error:
            raise AssertionError(f"seeded_workload({seed}): {error}") from error


def test_the_workloads_reach_what_they_are_for() -> None:
    """Red if a change of the generator leaves preemption, refusal, eviction, restoring, boosting or looking ahead untried."""
    seen = dict.fromkeys(("preempted", "refused", "pages evicted", "rows evicted", "restored", "boosted", "ahead", "cut"), 0)
    seen["stalled"] = 0

    def note(simulator: Simulator, _: object) -> None:
        seen["ahead"] += bool(simulator.schedule.ahead)
        line = (*simulator.schedule.running, *simulator.schedule.waiting)
        seen["stalled"] += any(sequence.stalled_on is not None for sequence in line)

    for seed in range(150):
        simulator = Simulator(seeded_workload(seed), on_step=note)
        simulator.run()
        schedule = simulator.schedule
        seen["preempted"] += schedule.preemptions
        seen["refused"] += simulator.refused
        seen["pages evicted"] += schedule.pages.evictions
        seen["rows evicted"] += schedule.embeddings.evictions
        seen["restored"] += len(simulator.runner.restored)
        seen["boosted"] += sum(watched.sequence.boosted for watched in simulator.watched.values())
        seen["cut"] += sum(watched.cut for watched in simulator.watched.values())
    assert all(count >= 10 for count in seen.values()), seen
