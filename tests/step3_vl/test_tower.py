"""Step3-VL's tower by its parts: rotary positions as stored, convolutions, folded scales, graphs and ranks."""

import itertools
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch.nn import functional as F

from encoder.test_graphs import attention_by_starts
from ops.run_again import run_again
from parallel.checkpoints import many_heads
from parallel.ranks import on_ranks
from parallel.test_tower import loaded as loaded_on
from parity.subject import DEVICES
from sightline.encoder.graphs import TowerGraphs
from sightline.models.families.step3_vl.tower import StepTower, neighbours
from sightline.models.load import load_model
from sightline.models.quantise import quantise_tower
from sightline.models.registry import read_model_spec
from sightline.ops.attention import segment_attention
from sightline.ops.capture import capture_cuda_graphs
from sightline.ops.dispatch import Implementation
from sightline.ops.patch_positions import patch_positions
from sightline.ops.rotary import rotated_projection
from sightline.parallel.group import Group
from sightline.types import Grid
from sightline.worker.profile_run import profile_tower

CPU = torch.device("cpu")
GRIDS: list[Grid] = [(1, 12, 12), (3, 8, 8), (1, 4, 8)]


def load_tower(folder: Path, device: str = "cpu") -> StepTower:
    tower = load_model(read_model_spec(folder), folder, torch.device(device), torch.float32, 64).vision
    assert isinstance(tower, StepTower)
    return tower


@pytest.fixture
def tower(tiny_checkpoints: dict[str, Path]) -> StepTower:
    return load_tower(tiny_checkpoints["step3-vl"])


def random_patches(grids: list[Grid], width: int, seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(count * high * wide, width, generator=generator) for count, high, wide in grids]


def places(grids: list[Grid]) -> tuple[torch.Tensor, torch.Tensor]:
    starts = [0, *itertools.accumulate(count * high * wide for count, high, wide in grids)]
    shapes = torch.tensor(grids, dtype=torch.int32)
    return patch_positions(shapes, torch.tensor(starts, dtype=torch.int32), starts[-1], 4)


@torch.inference_mode()
def test_columns_turn_the_first_half_of_pairs_that_lie_side_by_side(
    tiny_checkpoints: dict[str, Path], tower: StepTower
) -> None:
    """Scores of queries and keys as the model's own code makes them of the stored matrix. Red if rows and columns change
    places, or pairs are taken from the two halves of a head."""
    stored = load_file(tiny_checkpoints["step3-vl"] / "model.safetensors")
    name, heads = "vision_model.transformer.resblocks.1.attn", tower.spec.block.num_heads
    seen: list[torch.Tensor] = []
    tower.blocks[1].register_forward_pre_hook(lambda _, inputs: seen.extend(x.clone() for x in inputs[:2]))
    tower(tower.make_batch(random_patches([(1, 8, 12)], tower.patch_width), [(1, 8, 12)]))
    hidden, turns = seen
    row_col, _ = places([(1, 8, 12)])
    x = tower.blocks[1].norm1(hidden)
    qkv = F.linear(x, stored[f"{name}.in_proj_weight"], stored[f"{name}.in_proj_bias"])
    q, k, v = qkv.unflatten(1, (3, heads, -1)).unbind(1)
    frequencies = 1e4 ** (-torch.arange(24) / 24)
    angles = torch.cat((row_col[:, 1:] * frequencies, row_col[:, :1] * frequencies), 1)[:, None]  # columns, then rows

    def turned(vectors: torch.Tensor) -> torch.Tensor:
        pairs = torch.view_as_complex(vectors.unflatten(2, (48, 2)).contiguous())
        return torch.view_as_real(pairs * torch.polar(torch.ones_like(angles), angles)).flatten(2)

    linear = tower.blocks[1].qkv
    found = rotated_projection(x, linear.weight, linear.bias, turns, tower.rotary, heads)
    expected = torch.einsum("ihd,jhd->hij", turned(q), turned(k))
    torch.testing.assert_close(torch.einsum("ihd,jhd->hij", found[:, 0], found[:, 1]), expected, atol=1e-3, rtol=1e-4)
    torch.testing.assert_close(found[:, 2], v, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("block", [2, 4])
def test_neighbours_are_a_convolutions(block: int) -> None:
    """Against torch's, grid by grid. Red if a point sees one of another tile, zeros are put elsewhere than around the grid, or
    blocks are walked through in another order."""
    scale, size = 4 // block, 5
    grids = [(count, high // scale, wide // scale) for count, high, wide in GRIDS]
    row_col, grid_size = (
        x if scale == 1 else x.unflatten(0, (-1, 4, 4))[:, ::2, ::2].flatten(0, 2) // 2 for x in places(GRIDS)
    )
    generator = torch.Generator().manual_seed(1)
    hidden = torch.randn(len(row_col), size, generator=generator)
    weight = torch.randn(7, size, 3, 3, generator=generator)
    found = neighbours(hidden, row_col, grid_size, block).flatten(1) @ weight.permute(0, 2, 3, 1).flatten(1).T
    first = 0
    for count, high, wide in grids:
        for _ in range(count):
            picture = hidden[first * 4 : first * 4 + high * wide].unflatten(0, (high // block, wide // block, block, block))
            picture = picture.transpose(1, 2).reshape(high, wide, size).permute(2, 0, 1)
            expected = F.conv2d(picture[None], weight, stride=2, padding=1)[0].permute(1, 2, 0)  # [high / 2, wide / 2, 7]
            half = block // 2
            expected = expected.unflatten(1, (-1, half)).unflatten(0, (-1, half)).transpose(1, 2).reshape(-1, 7)
            torch.testing.assert_close(found[first : first + len(expected)], expected, atol=1e-5, rtol=1e-5)
            first += len(expected)
    assert first == len(found)


@torch.inference_mode()
def test_the_layout_for_gpus_changes_nothing(tower: StepTower, monkeypatch: pytest.MonkeyPatch) -> None:
    """Red if biases that norms add are missing where convolutions put zeros around a grid, or a scale is left out of one."""
    batch = tower.make_batch(random_patches(GRIDS, tower.patch_width), GRIDS)
    expected = tower(batch)
    monkeypatch.setattr("sightline.models.patch_tower.HEAD_DIM_MULTIPLE", 128)
    tower.lay_out_for_gpu()
    assert tower.blocks[0].proj.weight.shape[1] == 2 * 128 and tower.blocks[0].mlp.fc2.bias is None
    torch.testing.assert_close(tower(batch), expected, atol=2e-5, rtol=1e-5)


@torch.inference_mode()
def test_scales_are_folded_once(tiny_checkpoints: dict[str, Path], tower: StepTower) -> None:
    """Red if a factor is forgotten, used twice, or kept beside the products that have it."""
    stored = load_file(tiny_checkpoints["step3-vl"] / "model.safetensors")
    for index, block in enumerate(tower.blocks):
        assert block.scale1 is None and block.scale2 is None
        theirs = f"vision_model.transformer.resblocks.{index}"
        for number, linear, name in ((1, block.proj, "attn.out_proj"), (2, block.mlp.fc2, "mlp.c_proj")):
            factor = stored[f"{theirs}.ls_{number}.gamma"]
            assert torch.equal(linear.weight, factor[:, None] * stored[f"{theirs}.{name}.weight"])
            assert torch.equal(linear.bias, factor * stored[f"{theirs}.{name}.bias"])


@pytest.mark.parametrize("device", DEVICES)
@torch.inference_mode()
def test_graphs_give_what_the_tower_gives(
    tiny_checkpoints: dict[str, Path], device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Captured with buffers that hold more than the batch. Red if neighbours are worked out on the host, or are taken from what
    an earlier batch left behind."""
    monkeypatch.setattr(segment_attention, "kernels", [Implementation("by starts", attention_by_starts, lambda *_, **__: True)])
    tower = load_tower(tiny_checkpoints["step3-vl"], device)
    graphs = TowerGraphs(tower, run_again if device == "cpu" else capture_cuda_graphs(torch.device(device)), 1024)
    for number, grids in enumerate(([(1, 12, 12)], [(6, 8, 8), (1, 12, 12)], GRIDS, [(1, 8, 8)], [(1, 12, 12)])):
        patches = [part.to(device) for part in random_patches(grids, tower.patch_width, number)]
        batch = tower.make_batch(patches, grids)
        found = graphs.run(batch)
        assert found is not None
        torch.testing.assert_close(found, tower(batch), atol=2e-5, rtol=1e-5)


def test_blocks_can_be_quantised(tower: StepTower) -> None:
    """Red if folded products are no linear layers any more, or the convolutions are quantised too."""
    quantise_tower(tower)
    assert tower.blocks[0].proj.is_fp8 and tower.blocks[2].mlp.fc2.is_fp8 and not tower.merger.downsample1.is_fp8


def test_the_memory_profile_runs_whole_pictures(tiny_checkpoints: dict[str, Path]) -> None:
    """Red if the profile makes up grids that have other rows than a picture's."""
    folder = tiny_checkpoints["step3-vl"]
    model = load_model(read_model_spec(folder), folder, CPU, torch.float32, 64)
    assert model.vision.largest_grids(145) == [(2, 12, 12)]
    assert profile_tower(model, 145).shape == (2 * 9, model.spec.vision.embedding_width)


def rows_on_ranks(group: Group, folder: Path) -> list[torch.Tensor]:
    """Each rank has some of the patches; a row of the grid's middle sees patches of several."""
    model = loaded_on(folder, group)
    tower = model.vision
    assert isinstance(tower, StepTower)
    with tower.together(group):
        return [model.encode(tower.make_batch(random_patches(grids, tower.patch_width), grids)).numpy() for grids in (GRIDS,)]


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 3])
def test_ranks_share_the_patches_of_a_picture(tmp_path: Path, size: int) -> None:
    """Red if a rank convolves over its own patches alone."""
    folder = many_heads(tmp_path / "model", "step3-vl")
    model = loaded_on(folder)
    right = model.encode(model.vision.make_batch(random_patches(GRIDS, model.vision.patch_width), GRIDS))
    for (found,) in on_ranks(size, rows_on_ranks, folder):
        torch.testing.assert_close(torch.from_numpy(found), right, atol=1e-4, rtol=1e-4)
