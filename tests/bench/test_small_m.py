"""`python -m benchmarks.small_m`: which tilings are tried, and which one is chosen."""

import json
from pathlib import Path

import pytest

from benchmarks.__main__ import main as benchmark
from benchmarks.measure.small_m import data_lines, matrices_of
from sightline.config import MediaConfig, ModelConfig
from sightline.models.create import create_checkpoint
from sightline.models.files import read_model_files
from sightline.ops.triton.small_m_tilings import Tiling
from sightline.ops.tuning.small_m_search import Choice, Matrix, TilingCost, candidates, choose

OUT = Matrix("out", 4096, 4096)
A, B = Tiling(32, 128, 4, 4, 4), Tiling(64, 128, 2, 4, 4)


def cost(rows: int, tiling: Tiling | None, microseconds: float | None, error: float = 1e-3) -> TilingCost:
    return TilingCost(OUT, rows, tiling, microseconds, None, error if microseconds is not None else None)


# Red if a shape of a model is left out or has its sides swapped.
def test_matrices_of_a_model(tmp_path: Path) -> None:
    create_checkpoint(tmp_path / "8b", "qwen3-vl", "8b", weights=False)
    spec = read_model_files(ModelConfig(model=str(tmp_path / "8b")), MediaConfig()).spec
    shapes = {matrix.name: matrix.shape for matrix in matrices_of(spec.text)}
    assert shapes == {
        "qkv": (6144, 4096), "out": (4096, 4096), "down": (4096, 12288), "gate_up": (24576, 4096), "head": (151936, 4096)
    }  # fmt: skip


# Red if tilings are tried that cannot run, or that leave most of the chip idle, or too many for a sweep of some minutes.
@pytest.mark.parametrize("bucket", [16, 32, 64])
def test_candidates_fit_and_fill_the_chip(bucket: int) -> None:
    for matrix in (OUT, Matrix("down", 4096, 12288), Matrix("gate_up", 12288, 4096, gated=True), Matrix("head", 151936, 4096)):
        found = candidates(matrix.at(bucket))
        assert 4 <= len(found) == len(set(found)) <= 120
        for tiling in found:
            both = 2 if matrix.gated else 1
            assert 2 * tiling.inner * tiling.stages * (both * tiling.columns + bucket) <= 227 * 1024
            programs = -(-matrix.width // tiling.columns) * tiling.split
            assert programs >= 96 and (tiling.split == 1 or (programs <= 1100 and not matrix.gated))
    assert {tiling.split for tiling in candidates(OUT.at(bucket))} >= {1, 2, 4}


# Red if the choice looks at one number of rows only, or takes a tiling that failed or is inexact.
def test_the_least_time_over_a_bucket_is_chosen() -> None:
    library = [cost(1, None, 14.0), cost(16, None, 14.0)]
    (choice,) = choose([*library, cost(1, A, 9.0), cost(16, A, 13.0), cost(1, B, 10.0), cost(16, B, 10.0)])
    assert choice == Choice(OUT, 16, B, {1: 10.0, 16: 10.0}, None, {1: 14.0, 16: 14.0}) and choice.gains
    (choice,) = choose([*library, cost(1, A, 9.0), cost(16, A, None), cost(1, B, 13.9), cost(16, B, 13.9)])
    assert choice.tiling == B and not choice.gains
    (choice,) = choose([*library, cost(1, A, 5.0, error=1.2e-3), cost(16, A, 5.0), cost(1, B, 9.0), cost(16, B, 9.0)])
    assert choice.tiling == B


# Red if buckets of rows are mixed up.
def test_each_bucket_has_its_own_choice() -> None:
    costs = [cost(rows, tiling, time) for rows in (16, 17, 64) for tiling, time in ((None, 90.0), (A, 9.0 + rows), (B, 30.0))]
    assert [(one.bucket, one.tiling) for one in choose(costs)] == [(16, A), (32, A), (64, B)]


# Red if the lines cannot be put into a file of sightline/data/tilings as they are, or the library's better time is left out.
def test_the_lines_are_those_of_the_data() -> None:
    gate_up = Matrix("gate_up", 12288, 4096, gated=True)
    faster, slower = {1: 10.0}, {1: 20.0}
    left = Tiling(64, 64, 1, 4, 6, weight_left=True)
    choices = [
        Choice(OUT, 16, A, faster, None, slower),
        Choice(OUT, 32, B, slower, None, faster),
        Choice(gate_up, 64, left, faster, None, slower),
    ]
    entries = [json.loads(line) for line in data_lines(choices)]
    assert [entry[:4] for entry in entries] == [[16, 4096, 4096, False], [32, 4096, 4096, False], [64, 12288, 4096, True]]
    assert [entry[4] and Tiling(*entry[4]) for entry in entries] == [A, None, left]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--device", "cpu"], "small-m times kernels of a GPU, but --device is 'cpu' here."),
        (["--rows", "65"], "--rows is 65, but must be from 1 to 64."),
        (["--matrices", "k_proj"], "--matrices names 'k_proj'; there are qkv, out, down, gate_up, head."),
    ],
)
def test_what_cannot_be_measured_is_said(
    tiny_checkpoints: dict[str, Path], capsys: pytest.CaptureFixture[str], flags: list[str], said: str
) -> None:
    assert benchmark(["small_m", "--model", str(tiny_checkpoints["qwen3-vl"]), *flags]) != 0
    assert said in capsys.readouterr().err


@pytest.mark.gpu
def test_a_sweep_on_the_gpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Red if nothing of the grid runs, or a time is not that of a recorded launch."""
    create_checkpoint(tmp_path / "2b", "qwen3-vl", "2b", weights=False)
    flags = ["--model", str(tmp_path / "2b"), "--dtype", "bfloat16", "--rows", "1", "--json", str(tmp_path / "kept.json")]
    assert benchmark(["small_m", *flags, "--matrices", "qkv", "gate_up", "--repeats", "2"]) in (0, None)
    kept = json.loads((tmp_path / "kept.json").read_text())
    assert [choice["matrix"]["name"] for choice in kept["choices"]] == ["qkv", "gate_up"]
    timed = [one for one in kept["costs"] if one["microseconds"] is not None]
    assert len(timed) > 0.8 * len(kept["costs"]) and all(one["captured"] and one["error"] < 0.01 for one in timed)
    assert any(one["tiling"] and one["tiling"]["weight_left"] for one in timed)
