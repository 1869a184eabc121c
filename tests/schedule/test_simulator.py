"""Whole workloads through the scheduler. What is checked at every step, and which bounds hold, is in simulator.py.

Red with almost any mistake in schedule/: a page shared before it is computed, a lock, pin or page not given back, a token
computed twice or never, rows read that are not there, a step without work, a sequence that waits for ever.
"""

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings

from schedule.simulator import Simulator, Workload
from schedule.workloads import seeded_workload, workloads

QUIET = {"deadline": None, "suppress_health_check": list(HealthCheck)}
BATCHES = 20


def aside(workload: Workload) -> Workload:
    """The same with images encoded beside the steps of those that decode."""
    return replace(workload, limits=replace(workload.limits, encode_aside=True))


late = pytest.mark.parametrize("overlap", [False, True], ids=["in turn", "overlapped"])


@late
@settings(max_examples=600, **QUIET)
@given(workload=workloads())
def test_any_workload(workload: Workload, overlap: bool) -> None:
    Simulator(aside(workload) if overlap else workload, overlap=overlap).run()


@pytest.mark.slow
@late
@settings(max_examples=8000, **QUIET)
@given(workload=workloads())
def test_any_workload_at_length(workload: Workload, overlap: bool) -> None:
    Simulator(aside(workload) if overlap else workload, overlap=overlap).run()


@late
@settings(max_examples=150, **QUIET)
@given(workload=workloads())
def test_any_workload_through_real_batches(workload: Workload, overlap: bool) -> None:
    """Red if pack_batch gives other slots, pages, tokens or rows than the plan means."""
    Simulator(workload, real_batches=True, overlap=overlap).run()


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
            Simulator(aside(seeded_workload(seed)) if seed % 4 > 1 else seeded_workload(seed), overlap=seed % 2 == 1).run()
        except AssertionError as error:
            raise AssertionError(f"seeded_workload({seed}): {error}") from error


def test_the_workloads_reach_what_they_are_for() -> None:
    """Red if a change of the generator leaves preemption, refusal, eviction, restoring, boosting or looking ahead untried."""
    seen = dict.fromkeys(("preempted", "refused", "pages evicted", "rows evicted", "restored", "boosted", "ahead", "cut"), 0)

    def note(simulator: Simulator, _: object) -> None:
        seen["ahead"] += bool(simulator.schedule.ahead)

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
