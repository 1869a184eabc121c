"""Chunks beside those who decode. Red when a long prompt holds them up beyond the target, when cutting costs the load its
throughput, or when limits are exceeded."""

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from benchmarks.__main__ import main as benchmark
from benchmarks.measure.paced_load import DeviceModel, Load, simulate
from schedule.simulator import Simulator, Workload
from schedule.workloads import workloads
from sightline.config import EngineConfig
from sightline.errors import ConfigError
from sightline.schedule.pace import DEFAULT_TARGET_S, LEAST_TOKENS, Pace, backlog

DEVICE = DeviceModel()
LIGHT = Load(rate=8, requests=150, prompt=(50, 4000), answer=(32, 192))
MOST = 8192


def learnt(target_s: float | None = None, decode_s: float = 0.005, token_s: float = 20e-6) -> Pace:
    pace = Pace(target_s)
    for _ in range(40):
        pace.note(8, 0, decode_s, 0, 0.0)
        pace.note(8, 1000, decode_s + 1000 * token_s, 0, 0.0)
    return pace


def test_a_chunk_fits_what_decoding_leaves_of_the_target() -> None:
    assert learnt().tokens(8, 4000, MOST) == pytest.approx(1000, rel=0.02)  # (25 - 5) ms / 20 µs
    assert learnt(0.045).tokens(8, 4000, MOST) == pytest.approx(2000, rel=0.02)
    assert learnt(decode_s=0.010).tokens(8, 4000, MOST) == pytest.approx(1500, rel=0.02)  # four steps are 40 ms
    assert learnt(0.001).tokens(8, 100, MOST) == LEAST_TOKENS
    assert learnt().tokens(8, 4000, 500) == 500


def test_nobody_decodes_or_nothing_is_known_yet() -> None:
    assert learnt().tokens(0, 4000, MOST) == MOST and learnt().patches(0, 99) == 99
    assert Pace().tokens(8, 4000, MOST) == MOST and Pace().patches(8, 4000) == 4000


def test_what_waits_stretches_the_target() -> None:
    """40,000 tokens are 0.8 s: a quarter of that at a time."""
    pace = learnt()
    assert pace.tokens(8, 4000, MOST) == pytest.approx(1000, rel=0.02) and pace.exceeded == 0
    assert pace.tokens(8, 20_000, MOST) == pytest.approx(5000, rel=0.02) and pace.exceeded == 1
    assert pace.tokens(8, 400_000, MOST) == MOST and pace.exceeded == 2


def test_patches_in_line() -> None:
    pace = learnt()
    pace.note(8, 0, 0.005, 2000, 0.020)  # 10 µs each
    assert pace.patches(8, 65_536) == pytest.approx(2000, rel=0.02)


def test_a_measurement_that_is_off_is_forgotten() -> None:
    pace = learnt()
    pace.note(8, 1000, 3.0, 0, 0.0)  # something was compiled
    assert 800 < pace.tokens(8, 1500, MOST) < 900
    for _ in range(30):
        pace.note(8, 200, 0.009, 0, 0.0)
    assert pace.tokens(8, 4000, MOST) == pytest.approx(1000, rel=0.05)


def test_the_queue_is_counted_by_its_first() -> None:
    assert backlog([]) == 0 and backlog([5, 7]) == 12 and backlog([10] * 1000) == 10_000


def test_those_who_decode_are_held_up_for_the_target_and_no_longer() -> None:
    free, paced = simulate(LIGHT, DEVICE, None), simulate(LIGHT, DEVICE, Pace())
    assert free.percentile("gaps_s", 99) > 0.06
    assert paced.percentile("gaps_s", 99) < 1.5 * DEFAULT_TARGET_S < 0.6 * free.percentile("gaps_s", 99)
    assert paced.percentile("first_s", 50) < 1.5 * free.percentile("first_s", 50)
    assert paced.seconds < 1.01 * free.seconds


def test_throughput_wins_where_the_queue_would_grow() -> None:
    """Twice what the device can do."""
    heavy = replace(LIGHT, rate=40)
    free, paced = simulate(heavy, DEVICE, None), simulate(heavy, DEVICE, Pace())
    assert paced.seconds < 1.04 * free.seconds and paced.exceeded > 10


class Whimsical(Pace):
    """Any limit at all."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.random = random.Random(seed)

    def tokens(self, decoding: int, backlog: int, most: int) -> int:
        return self.random.randint(1, max(1, min(most, 4)))

    def patches(self, decoding: int, most: int) -> int:
        return self.random.randint(0, most)


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(workload=workloads())
def test_any_workload_at_any_pace(workload: Workload) -> None:
    """All checks of the simulator hold; chunks beside those who decode are within the pace."""

    def check(simulator: Simulator, step: object) -> None:
        if step.decoding:  # type: ignore[attr-defined]
            assert step.prompt_tokens <= 4  # type: ignore[attr-defined]

    simulator = Simulator(workload, overlap=True, on_step=check)
    simulator.schedule.pace = Whimsical(len(workload.arrivals))
    simulator.run()


def test_a_target_below_zero_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^target_itl_ms is -1, but must be at least 0\.$"):
        EngineConfig(target_itl_ms=-1)


def test_the_benchmark_prints_and_keeps_its_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "pace.json"
    assert benchmark(["pace", "--rates", "8", "--requests", "30", "--targets", "40", "--json", str(file)]) == 0
    kept = json.loads(file.read_text())
    assert [row["target_itl_ms"] for row in kept["loads"]] == ["none", "default", "40"]
    assert "default" in capsys.readouterr().out
