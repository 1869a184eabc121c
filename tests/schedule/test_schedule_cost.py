"""The cost of a step on the host grows with the sequences and with nothing else."""

import json
from pathlib import Path

import pytest

from benchmarks.__main__ import main as benchmark
from benchmarks.measure.schedule_cost import ScheduleCost, decode_cost, fill_cost, growth


def test_the_cost_per_sequence_does_not_grow_with_their_number() -> None:
    """Red if planning becomes quadratic: a search through the running sequences for each of them makes this ratio about 8.

    The best of several medians on each side, taken in turns, so that a busy machine slows both.
    """
    few, many = [], []
    for _ in range(4):
        few.append(decode_cost(64, steps=40, batches=False).per_sequence)
        many.append(decode_cost(512, steps=10, batches=False).per_sequence)
    assert min(many) <= 2 * min(few), f"{min(few):.2f} µs per sequence at 64, {min(many):.2f} at 512"


def test_growth_is_two_where_the_cost_is_linear() -> None:
    """Red if the ratio is not taken per doubling."""
    costs = [ScheduleCost("decode", n, 3.0 * n, 1.0 * n, 0.0, 0.0) for n in (1, 16, 64)]
    assert growth(costs) == [None, pytest.approx(2), pytest.approx(2)]
    assert growth([]) == []


def test_filling_measures_steps_that_fill() -> None:
    """Red if the queue runs dry, or if nothing is measured."""
    cost = fill_cost(4, steps=30)
    assert cost.case == "fill" and cost.plan > 0 and cost.complete > 0 and cost.batch > 0 and cost.slowest >= cost.plan


def test_the_command_prints_a_table_and_keeps_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Red if a column of the report or the machine's name is lost."""
    file = tmp_path / "kept" / "cost.json"
    assert benchmark(["schedule", "--sequences", "2", "1", "--steps", "3", "--json", str(file)]) == 0
    assert capsys.readouterr().out.count("decode") == 2
    kept = json.loads(file.read_text())
    assert [(row["case"], row["sequences"]) for row in kept["rows"]] == [("decode", 1), ("decode", 2), ("fill", 1), ("fill", 2)]
    assert kept["cpu"] and kept["command"].startswith("python -m benchmarks.schedule") and kept["steps"] == 3


def test_a_wrong_number_of_steps_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    """Red if it ends in a traceback."""
    assert benchmark(["schedule", "--steps", "0"]) == 1
    assert capsys.readouterr().err == "python -m benchmarks.schedule: --steps is 0, but must be at least 1.\n"
