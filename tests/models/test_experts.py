"""Experts in the three layouts that checkpoints have, plain and in 8-bit floats, and matrices split per head: from files."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from models.weight_trees import count_bytes
from sightline.errors import CheckpointError
from sightline.models.checkpoint import open_checkpoint
from sightline.models.fp8 import Fp8Weight
from sightline.models.stored_fp8 import StoredFp8, as_parameter
from sightline.models.weight_table import WeightTable
from sightline.models.weights.evaluate import evaluate
from sightline.models.weights.expressions import Share, Stored, part_of_groups
from sightline.models.weights.layers import stacked_experts
from sightline.spec import ExpertLayout, Fp8Spec

COUNT, HIDDEN, INTERMEDIATE = 3, 256, 384  # no side equals another, so that a matrix the wrong way round does not fit
LAYOUTS: tuple[ExpertLayout, ...] = ("fused", "fused_transposed", "per_expert")
SPECS = {"block": Fp8Spec("block", "_scale_inv", True), "channel": Fp8Spec("channel", "_scale", True)}
THEIRS = "text.layers.0.mlp.experts"
Parameter = torch.Tensor | Fp8Weight


def table_of(layout: ExpertLayout, intermediate: int = INTERMEDIATE) -> WeightTable:
    table = WeightTable()
    sizes = {"count": COUNT, "hidden": HIDDEN, "intermediate": intermediate}
    table["mlp.gate_up"], table["mlp.down"] = stacked_experts(THEIRS, **sizes, layout=layout)
    return table


def matrices(out: int, size: int) -> torch.Tensor:
    return torch.randn(COUNT, out, size, generator=torch.Generator().manual_seed(out))


def quantised(weight: torch.Tensor, spec: Fp8Spec) -> Fp8Weight:
    """Each expert's matrix by itself, with scales [experts, out] or [experts, out / 128, size / 128]."""
    each = [Fp8Weight.of(matrix, blocks=spec.scales == "block") for matrix in weight]
    return Fp8Weight(torch.stack([one.values for one in each]), torch.stack([one.scale for one in each]))


def in_layout(layout: ExpertLayout, gate_up: torch.Tensor, down: torch.Tensor, suffix: str = "") -> dict[str, torch.Tensor]:
    """Matrices [experts, out, size], or their scales with as many axes, under the names and in the shapes of a layout."""
    if layout == "per_expert":
        halves = gate_up.chunk(2, 1)
        named = {"gate": halves[0], "up": halves[1], "down": down}
        return {
            f"{THEIRS}.{index}.{name}_proj.weight{suffix}": stacked[index].contiguous()
            for name, stacked in named.items()
            for index in range(COUNT)
        }
    both = {"gate_up_proj": gate_up, "down_proj": down}
    if layout == "fused_transposed":
        both = {name: tensor.transpose(1, 2) for name, tensor in both.items()}
    return {f"{THEIRS}.{name}{suffix}": tensor.contiguous() for name, tensor in both.items()}


def fp8_files(layout: ExpertLayout, gate_up: Fp8Weight, down: Fp8Weight, spec: Fp8Spec) -> dict[str, torch.Tensor]:
    scales = [one.scale if one.has_blocks else one.scale[..., None] for one in (gate_up, down)]
    return in_layout(layout, gate_up.values, down.values) | in_layout(layout, *scales, suffix=spec.scale_suffix)


@contextmanager
def opened(folder: Path, tensors: dict[str, torch.Tensor], table: WeightTable, spec: Fp8Spec | None) -> Iterator[StoredFp8]:
    save_file(tensors, folder / "model.safetensors")
    with open_checkpoint(folder) as checkpoint:
        assert checkpoint.names() == set(table.stored()) | {name for name in tensors if "_scale" in name}
        yield StoredFp8(checkpoint, table, spec)


def read_all(
    folder: Path, tensors: dict[str, torch.Tensor], table: WeightTable, spec: Fp8Spec | None, share: Share | None = None
) -> dict[str, Parameter]:
    with opened(folder, tensors, table, spec) as stored:
        trees = {name: tree if share is None else share.of(tree) for name, tree in table.items()}
        return {name: as_parameter(evaluate(tree, stored.read)).contiguous() for name, tree in trees.items()}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_plain_experts(tmp_path: Path, layout: ExpertLayout) -> None:
    """Red when a layout is read the wrong way round, or gate's rows come after up's."""
    gate_up, down = matrices(2 * INTERMEDIATE, HIDDEN).bfloat16(), matrices(HIDDEN, INTERMEDIATE).bfloat16()
    read = read_all(tmp_path, in_layout(layout, gate_up, down), table_of(layout), None)
    assert torch.equal(read["mlp.gate_up"], gate_up) and torch.equal(read["mlp.down"], down)


@pytest.mark.parametrize("scales", ["block", "channel"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_fp8_experts_keep_bytes_and_scales(tmp_path: Path, layout: ExpertLayout, scales: str) -> None:
    """Red when scales are not transposed, stacked and joined as their matrices are, or 8 bits are given up."""
    spec = SPECS[scales]
    gate_up, down = quantised(matrices(2 * INTERMEDIATE, HIDDEN), spec), quantised(matrices(HIDDEN, INTERMEDIATE), spec)
    read = read_all(tmp_path, fp8_files(layout, gate_up, down, spec), table_of(layout), spec)
    for name, expected in (("mlp.gate_up", gate_up), ("mlp.down", down)):
        found = read[name]
        assert isinstance(found, Fp8Weight) and found.has_blocks == (scales == "block")
        assert torch.equal(found.values.view(torch.uint8), expected.values.view(torch.uint8))
        assert torch.equal(found.scale, expected.scale) and found.values.is_contiguous()
        each = [Fp8Weight(v, s).dequantise() for v, s in zip(expected.values, expected.scale, strict=True)]
        assert torch.equal(found.dequantise(), torch.stack(each))


def test_channel_scales_without_an_axis_for_inputs(tmp_path: Path) -> None:
    """[experts, out] instead of [experts, out, 1]. Red when the shorter form is refused or spread along another axis."""
    spec = SPECS["channel"]
    gate_up, down = quantised(matrices(2 * INTERMEDIATE, HIDDEN), spec), quantised(matrices(HIDDEN, INTERMEDIATE), spec)
    tensors = in_layout("fused", gate_up.values, down.values)
    tensors |= {f"{THEIRS}.gate_up_proj_scale": gate_up.scale, f"{THEIRS}.down_proj_scale": down.scale}
    for share in (None, Share(1, ((64, 32),))):
        found = read_all(tmp_path, tensors, table_of("fused"), spec, share)["mlp.gate_up"]
        assert isinstance(found, Fp8Weight)
        assert torch.equal(found.scale, gate_up.scale if share is None else gate_up.scale[:, 64:96])


@pytest.mark.parametrize(("layout", "kept"), [("fused", True), ("fused_transposed", True), ("per_expert", False)])
def test_blocks_that_would_reach_from_gate_to_up(tmp_path: Path, layout: ExpertLayout, kept: bool) -> None:
    """200 rows of gate and 200 of up: one grid over both stays, two grids cannot be joined. Red when they are."""
    spec, intermediate = SPECS["block"], 200
    down = quantised(matrices(HIDDEN, intermediate), spec)
    whole = matrices(2 * intermediate, HIDDEN)
    if layout == "per_expert":
        gate, up = (quantised(half, spec) for half in whole.chunk(2, 1))
        expected = torch.cat([gate.dequantise(), up.dequantise()], 1)
        values, scale = (torch.cat(both, 1) for both in ((gate.values, up.values), (gate.scale, up.scale)))
        gate_up = Fp8Weight(values, scale)
    else:
        gate_up = quantised(whole, spec)
        expected = gate_up.dequantise()
    tensors = fp8_files(layout, gate_up, down, spec)
    found = read_all(tmp_path, tensors, table_of(layout, intermediate), spec)["mlp.gate_up"]
    assert isinstance(found, Fp8Weight) == kept
    assert torch.equal(found.dequantise() if isinstance(found, Fp8Weight) else found, expected)


@pytest.mark.parametrize("scales", ["block", "channel"])
def test_scales_the_wrong_way_round_are_refused(tmp_path: Path, scales: str) -> None:
    """Matrices transposed and scales not. Red when the orientation of a grid is guessed from its shape."""
    spec = SPECS[scales]
    gate_up, down = quantised(matrices(2 * INTERMEDIATE, HIDDEN), spec), quantised(matrices(HIDDEN, INTERMEDIATE), spec)
    tensors = fp8_files("fused_transposed", gate_up, down, spec)
    name = f"{THEIRS}.gate_up_proj{spec.scale_suffix}"
    tensors[name] = tensors[name].transpose(1, 2).contiguous()
    with pytest.raises(CheckpointError, match=r"gate_up_proj_scale\w*' has the shape"):
        read_all(tmp_path, tensors, table_of("fused_transposed"), spec)


@pytest.mark.parametrize("scales", ["none", "block", "channel"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_share_of_the_experts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: ExpertLayout, scales: str) -> None:
    """Two of three experts, and a third of each expert's gate and up: the right numbers, and no others are read."""
    spec = SPECS.get(scales)
    whole_gate_up, whole_down = matrices(2 * INTERMEDIATE, HIDDEN), matrices(HIDDEN, INTERMEDIATE)
    if spec is None:
        tensors, meant = in_layout(layout, whole_gate_up, whole_down), whole_gate_up
    else:
        gate_up, down = quantised(whole_gate_up, spec), quantised(whole_down, spec)
        tensors, meant = fp8_files(layout, gate_up, down, spec), gate_up.dequantise()
    counted = count_bytes(monkeypatch)
    third = (128, 128)
    for share, expected in (
        (Share(0, ((1, 2),)), meant[1:]),
        (Share(1, (third, (INTERMEDIATE + third[0], third[1]))), torch.cat([meant[:, 128:256], meant[:, 512:640]], 1)),
        (Share(2, (third,)), meant[:, :, 128:256]),
    ):
        with opened(tmp_path, tensors, table_of(layout), spec) as stored:
            counted.clear()
            found = as_parameter(evaluate(share.of(table_of(layout)["mlp.gate_up"]), stored.read))
        assert isinstance(found, Fp8Weight) == (spec is not None)
        assert torch.equal(found.dequantise() if isinstance(found, Fp8Weight) else found, expected)
        matrices_read = [count for name, count in counted if "_scale" not in name]
        assert sum(matrices_read) == expected.numel() * (4 if spec is None else 1)


@pytest.mark.parametrize("scales", ["none", "block", "channel"])
def test_q_and_gate_of_one_stored_matrix(tmp_path: Path, scales: str) -> None:
    """2 heads of 256 rows of q and 256 of a gate, in one tensor that feeds two parameters, in 8 bits too."""
    spec = SPECS.get(scales)
    rows = torch.randn(2 * 512, 128, generator=torch.Generator().manual_seed(5))
    name = "text.layers.0.self_attn.q_proj.weight"
    tensors, meant = {name: rows}, rows
    if spec is not None:
        weight = Fp8Weight.of(rows, blocks=spec.scales == "block")
        scale = weight.scale if weight.has_blocks else weight.scale[:, None]
        tensors, meant = {name: weight.values, name + spec.scale_suffix: scale}, weight.dequantise()
    table = WeightTable()
    stored = Stored(name, (1024, 128))
    table["q.weight"] = part_of_groups(stored, 0, 2, 0, 256)
    table["gate.weight"] = part_of_groups(stored, 0, 2, 256, 256)
    read = read_all(tmp_path, tensors, table, spec)
    heads = meant.unflatten(0, (2, 2, 256))
    for index, parameter in enumerate(read.values()):
        assert isinstance(parameter, Fp8Weight) == (spec is not None)
        found = parameter.dequantise() if isinstance(parameter, Fp8Weight) else parameter
        assert torch.equal(found, heads[:, index].flatten(0, 1))
