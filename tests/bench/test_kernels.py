"""`benchmarks.kernels`: every op is timed or named, floors follow from shapes, and the loops over images are right."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.__main__ import main as benchmark
from benchmarks.measure import per_image_reference as reference
from benchmarks.measure.image_batches import COUNTS, SIDES, BatchCost, batch_shapes, entry_tower, grids_of, measure_batch
from benchmarks.measure.kernel_case import FULL, SMALL, Setting
from benchmarks.measure.kernels import SHAPES, all_ops, measure_ops
from benchmarks.measure.stage_floors import Rates
from sightline.config import MediaConfig, ModelConfig
from sightline.models.create import create_checkpoint
from sightline.models.files import read_model_files
from sightline.ops.dispatch import OPS, Implementation
from sightline.ops.patch_positions import patch_positions
from sightline.ops.position_grid import add_position_grid
from sightline.ops.rotary import make_rotary_table
from sightline.ops.tuning.timing import measure_calls
from tests.conftest import FAMILIES

CPU = torch.device("cpu")


def setting(folder: Path, sizes: Any = SMALL) -> Setting:
    files = read_model_files(ModelConfig(model=str(folder)), MediaConfig())
    return Setting(files.spec, files.processor.image, sizes, CPU, torch.float32)


# Red if an op is added without shapes, or a shape does not fit its op any more, for any family.
@pytest.mark.parametrize("family", FAMILIES)
def test_every_op_has_shapes_that_it_takes(tiny_checkpoints: dict[str, Path], family: str) -> None:
    at = setting(tiny_checkpoints[family])
    found = list(measure_ops(at, list(all_ops()), Rates(), repeats=1))
    assert [one for one in found if isinstance(one, str)] == []
    timed = [one for one in found if not isinstance(one, str)]
    assert {one.op for one in timed} == set(OPS) and all(one.microseconds and one.error is None for one in timed)
    assert all(one.floor_microseconds > 0 for one in timed)
    assert {(one.op, one.shape) for one in timed} == {(one.op, one.shape) for one in timed if one.used}


# Red if a floor leaves something out; figures by hand.
def test_floors_at_8b_sizes(tmp_path: Path) -> None:
    create_checkpoint(tmp_path / "8b", "qwen3-vl", "8b", weights=False)
    at = replace(setting(tmp_path / "8b", FULL), dtype=torch.bfloat16, device=torch.device("meta"))
    cases = {
        name: {case.shape: case for case in SHAPES[name](at)} for name in ("layer_norm", "segment_attention", "fp8_linear")
    }
    assert cases["layer_norm"]["8160x1152"].bytes_moved == 2 * 2 * 8160 * 1152
    attention = cases["segment_attention"]["1 x 8160, 16 heads of 72"]
    assert attention.operations == 4 * 8160**2 * 1152
    assert cases["segment_attention"]["20 x 4800, 16 heads of 72"].operations == 20 * 4 * 4800**2 * 1152
    linear = cases["fp8_linear"]["2048x4096 to 24576"]
    assert linear.operations == 2 * 2048 * 4096 * 24576 and linear.speed == 2
    paged = {case.shape: case for case in SHAPES["paged_attention"](at)}
    assert paged["32 x 1 over 8192"].bytes_moved == 2 * 32 * (2 * 8192 * 8 * 128 + 2 * 32 * 128)
    assert paged["1 x 2048 over 8192"].operations == pytest.approx(4 * 32 * 128 * (2048 * (8192 - 2048) + 2048 * 2049 / 2))
    assert {shape.split()[0] for shape in paged} == {"1", "32", "128"}


# Red if kernels are not timed beside the definition, or the wrong one is said to be used.
def test_kernels_stand_beside_the_definition(tiny_checkpoints: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    all_ops()
    op = OPS["silu_mul"]
    never = Implementation("never", op.definition, lambda *_, **__: False)
    kernels = [
        never,
        Implementation("first", op.definition, lambda *_, **__: True),
        Implementation("second", op.definition, lambda *_, **__: True),
    ]
    monkeypatch.setattr(op, "kernels", kernels)
    found = [
        one for one in measure_ops(setting(tiny_checkpoints["qwen3-vl"]), ["silu_mul"], Rates(), 1) if not isinstance(one, str)
    ]
    assert [(one.implementation, one.used) for one in found[:3]] == [("definition", False), ("first", True), ("second", False)]


# Red if a kernel that cannot run takes the figures of all others along, or fails without a word.
def test_a_kernel_that_fails_is_named(
    tiny_checkpoints: dict[str, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def fail(*_: Any, **__: Any) -> torch.Tensor:
        raise RuntimeError("no kernel image")

    all_ops()
    monkeypatch.setattr(OPS["silu_mul"], "kernels", [Implementation("broken", fail, lambda *_, **__: True)])
    flags = ["--model", str(tiny_checkpoints["qwen3-vl"]), "--device", "cpu", "--no-batches", "--repeats", "1"]
    kept = tmp_path / "k.json"
    assert benchmark(["kernels", "--ops", "silu_mul", "gelu", *flags, "--json", str(kept)]) == 1
    assert "failed: no kernel image" in capsys.readouterr().out
    errors = {one["implementation"]: one["error"] for one in json.loads(kept.read_text())["ops"]}
    assert errors == {"definition": None, "broken": "failed: no kernel image"}


def test_an_op_without_shapes_is_named(
    tiny_checkpoints: dict[str, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    all_ops()
    monkeypatch.setitem(OPS, "brand_new", OPS["silu_mul"])
    flags = ["--model", str(tiny_checkpoints["qwen3-vl"]), "--device", "cpu", "--no-batches", "--repeats", "1"]
    assert benchmark(["kernels", "--ops", "brand_new", *flags]) == 1
    assert "1 of 1 ops have no shapes here: brand_new" in capsys.readouterr().out


# ---- Loops over images

GRIDS = [(1, 4, 6), (2, 8, 4), (1, 2, 2), (1, 12, 10)]


def places_of(grids: list[Any], merge: int) -> tuple[torch.Tensor, torch.Tensor]:
    shapes = np.array(grids, np.int32)
    starts = np.concatenate(([0], np.cumsum(shapes.prod(1)))).astype(np.int32)
    return patch_positions(torch.from_numpy(shapes), torch.from_numpy(starts), int(starts[-1]), merge)


# Red if what the batched way is compared with computes something else: then it would be no comparison.
@pytest.mark.parametrize("family", ["qwen3-vl", "glm-4.1v"])
def test_positions_of_the_loop_are_those_of_the_batch(tiny_checkpoints: dict[str, Path], family: str) -> None:
    vision = setting(tiny_checkpoints[family]).spec.patch_tower
    grid = vision.position_grid
    assert grid is not None
    row_col, grid_size = places_of(GRIDS, vision.merge_size)
    table, hidden = torch.randn(grid.side**2, 24), torch.randn(len(row_col), 24)
    wanted = add_position_grid.definition(hidden, table, row_col, grid_size, grid.mode, grid.align_corners)
    torch.testing.assert_close(
        reference.add_positions(hidden, table, GRIDS, vision.merge_size, grid), wanted, atol=1e-4, rtol=1e-4
    )


def test_rotary_positions_of_the_loop_are_those_of_the_batch() -> None:
    row_col, _ = places_of(GRIDS, 2)
    table = make_rotary_table(64, 8, 1e4, CPU)
    frequencies = 1.0 / 1e4 ** (torch.arange(0, 8, 2) / 8)
    cos, sin = reference.rotary_positions(GRIDS, 2, frequencies)
    torch.testing.assert_close(cos[:, :8], table.cos[row_col].flatten(1))
    torch.testing.assert_close(sin[:, 8:], table.sin[row_col].flatten(1))


def test_the_convolution_is_the_linear_map(tiny_checkpoints: dict[str, Path]) -> None:
    spec = setting(tiny_checkpoints["qwen3-vl"]).spec
    patch, tower = spec.patch_tower.patch_embed, entry_tower(spec, CPU, torch.float32)
    frame = torch.randn(10, patch.in_channels, 1, patch.patch_size**2)
    full = frame.expand(-1, -1, patch.temporal_patch_size, -1).flatten(1)
    kernel = tower.patch_embed.weight.view(-1, patch.in_channels, patch.temporal_patch_size, *[patch.patch_size] * 2)
    theirs = reference.embed_patches(full, kernel, tower.patch_embed.bias)
    torch.testing.assert_close(theirs, tower.patch_embed((frame.flatten(1),)), atol=1e-4, rtol=1e-4)


# Red if a number of images or a size of the plan is left out.
def test_batches_of_the_plan(tiny_checkpoints: dict[str, Path]) -> None:
    vision = setting(tiny_checkpoints["qwen3-vl"]).spec.patch_tower
    shapes = dict(batch_shapes(COUNTS, SIDES, vision))
    assert len(shapes) == len(COUNTS) * len(SIDES) + len(COUNTS) - 1
    assert len(shapes["64 mixed"]) == 64 and len(set(shapes["64 mixed"])) == len(SIDES)
    assert grids_of(
        [(1080, 1920)], 1, replace(vision, patch_embed=replace(vision.patch_embed, patch_size=16), merge_size=2)
    ) == [(1, 68, 120)]


def test_parts_of_a_batch(tiny_checkpoints: dict[str, Path]) -> None:
    tower = entry_tower(setting(tiny_checkpoints["qwen3-vl"]).spec, CPU, torch.float32)
    found = list(measure_batch(tower, "4", GRIDS, repeats=2))
    assert [cost.part for cost in found] == ["patch embedding", "position embedding", "rotary positions"]
    assert all(cost.patches == 24 + 64 + 4 + 120 and cost.ours_us > 0 and cost.reference_us > 0 for cost in found)
    assert BatchCost("", "", 1, 2.0, 1.9, 1.0).faster and not BatchCost("", "", 1, 2.0, 2.0, 1.0).faster


def test_calls_take_turns() -> None:
    seen: list[int] = []
    calls: list[Callable[[], None]] = [lambda: seen.append(0), lambda: seen.append(1)]
    assert measure_calls(calls, 4, CPU).microseconds > 0
    assert seen == [0, 1, 0, 1, 0]


@pytest.mark.gpu
def test_a_graph_times_the_same_work_as_launches() -> None:
    x = torch.randn(4096, 4096, device="cuda")
    found = measure_calls([lambda: x @ x], 5, x.device)
    assert found.captured and 50 < found.microseconds < 100_000
    waits = measure_calls([lambda: x.sum().item()], 5, x.device)  # waits for the device: no graph can hold it
    assert not waits.captured and waits.microseconds > 0
    assert measure_calls([lambda: x @ x], 5, x.device).captured  # and nothing is broken after it


def test_command(tiny_checkpoints: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--model", str(tiny_checkpoints["qwen3-vl"]), "--device", "cpu", "--repeats", "1", "--ops", "rms_norm", "gelu"]
    kept, summary = tmp_path / "k.json", tmp_path / "s.json"
    assert benchmark(["kernels", *flags, "--json", str(kept), "--summary", str(summary)]) == 0
    found = json.loads(kept.read_text())
    assert {one["op"] for one in found["ops"]} == {"rms_norm", "gelu"} and found["without_shapes"] == []
    slower = sum(not one["faster"] for one in found["batches"])
    assert found["batches_slower_than_loops"] == slower == json.loads(summary.read_text())["batches_slower_than_loops"]["value"]
    assert f"{slower} of {len(found['batches'])} batches of images are slower" in capsys.readouterr().out
    assert benchmark(["kernels", "--ops", "gelo"]) == 1
    assert "--ops names 'gelo'" in capsys.readouterr().err
