"""The matrix of docs/models.md is that of the results and of the families as they are now."""

import json

from benchmarks.compatibility import _RANKS_TRIED, BEGIN, END, PAGE, ROOT, Run, current, matrix, runs_of
from parallel.checkpoints import HEADS
from sightline.models.registry import registry

DATA = json.loads((ROOT / "benchmarks" / "compatibility.json").read_text())
SUMMARY = json.loads((ROOT / "benchmarks" / "results" / "h200" / "summary.json").read_text())


def test_the_page_has_the_matrix_as_it_is_now() -> None:
    """Red when a family, a size or a result was added and `python -m benchmarks.compatibility` was not run."""
    assert PAGE.read_text().split(BEGIN)[1].split(END)[0].strip() == current()


def test_every_family_and_size_has_a_row() -> None:
    families = registry().families
    rows = current().splitlines()[2:]
    assert len(rows) == sum(not size.startswith("tiny") for family in families.values() for size in family.sizes)
    sized = {name for name, family in families.items() if any(not size.startswith("tiny") for size in family.sizes)}
    assert {name for name in families if any(row.startswith(f"| `{name}`") for row in rows)} == sized
    for run in runs_of(DATA, SUMMARY):
        assert run.size in families[run.family].sizes, run


def test_what_is_said_of_ranks_is_what_tests_try() -> None:
    of_their_own = {"phi4-multimodal", "deepseek-vl2"}  # tests/phi4_multimodal, tests/deepseek_vl2
    assert set(_RANKS_TRIED) == HEADS.keys() | of_their_own


def test_a_new_figure_fills_its_cell() -> None:
    """The latest run counts; a figure with a model's name is of that model, one without is of the first."""
    made = {"value": 1.0, "command": "", "commit": "abc1234", "device": "NVIDIA B200", "time": "2027-01-02T00:00:00Z"}
    new = {**SUMMARY, "ttft_ms.q35-9b.560": made, "decode_ms.fp8.1": made, "soak_complaints": made}
    runs = runs_of(DATA, new)
    assert Run("qwen3.5", "9b", "bfloat16", False, 1, "NVIDIA B200", "abc1234", "2027-01-02") in runs
    rows = {
        tuple(cell.strip() for cell in row.split("|")[1:4]): row
        for row in matrix(registry().families.values(), runs).split("\n")
    }
    cells = {key: [cell.strip() for cell in row.split("|")[4:8]] for key, row in rows.items()}
    said = "B200, abc1234, 2027-01-02"
    assert cells["`qwen3.5` (`qwen3_5`)", "9B", "-"] == [said, "CPU", "-", "CPU"]
    bfloat16, fp8, graphs, ranks = cells["`qwen3-vl` (`qwen3_vl`)", "8B", "-"]
    assert bfloat16.startswith("H200, 161f065") and (fp8, graphs, ranks) == (said, said, "CPU")
