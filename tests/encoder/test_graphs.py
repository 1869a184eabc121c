"""Graphs of the tower give what the tower gives, whatever ran before. Red when a buffer is not rewritten or rows leak.

On a CPU a "graph" runs the captured function again on the same buffers, which has all of a graph's dangers but the device's.
"""

import itertools
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from ops.run_again import run_again
from sightline import LLM
from sightline.encoder.graphs import SEGMENTS, TowerGraphs, buckets
from sightline.errors import ConfigError
from sightline.models.load import load_model
from sightline.models.patch_tower import PatchTower
from sightline.models.registry import read_model_spec
from sightline.ops.attention import segment_attention
from sightline.ops.capture import capture_cuda_graphs
from sightline.ops.dispatch import Implementation, definitions_only
from sightline.types import Grid

FAMILIES = ["qwen3-vl", "qwen2.5-vl", "glm-4.1v"]
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
MOST = 1024


def attention_by_starts(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    segment_starts: torch.Tensor,
    segment_lengths: tuple[int, ...],
    scale: float,
) -> torch.Tensor:
    """As graphs need it: segments come from the starts alone. Rows behind the last one get nothing (not a number)."""
    number = torch.arange(len(q), device=q.device, dtype=segment_starts.dtype)
    segment = torch.searchsorted(segment_starts, number, right=True)
    allowed = segment[:, None] == segment[None, :]
    behind = number >= segment_starts[-1]
    v = v.masked_fill(behind[:, None, None], 0)  # a kernel would not read them; 0 * nan is not 0
    scores = torch.einsum("qhd,khd->hqk", q.float(), k.float()) * scale
    out = torch.einsum("hqk,khd->qhd", scores.masked_fill(~allowed, float("-inf")).softmax(-1), v.float()).to(q.dtype)
    out[behind] = float("nan")
    return out


@pytest.fixture(autouse=True)
def attention(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(segment_attention, "kernels", [Implementation("by starts", attention_by_starts, lambda *_, **__: True)])
    yield


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> torch.device:
    return torch.device(request.param)


@pytest.fixture(params=FAMILIES)
def tower(request: pytest.FixtureRequest, tiny_checkpoints: dict[str, Path], device: torch.device) -> PatchTower:
    folder = tiny_checkpoints[request.param]
    found = load_model(read_model_spec(folder), folder, device, torch.float32, 64).vision.requires_grad_(False)
    assert isinstance(found, PatchTower)
    return found


def graphs_of(tower: PatchTower) -> TowerGraphs:
    device = tower.patch_embed.weight.device
    return TowerGraphs(tower, capture_cuda_graphs(device) if device.type == "cuda" else run_again, MOST)


class Batches:
    """Random batches of given grids, and what the tower says of them without a graph."""

    def __init__(self, tower: PatchTower) -> None:
        self.tower, self.spec = tower, tower.spec
        self.device = tower.patch_embed.weight.device
        self.generator = torch.Generator().manual_seed(0)

    def __call__(self, grids: list[Grid]) -> tuple[object, torch.Tensor]:
        width = self.spec.patch_embed.compact_width
        patches = [torch.randn(t * h * w, width, generator=self.generator).to(self.device) for t, h, w in grids]
        batch = self.tower.make_batch(patches, grids)
        return batch, self.tower(batch)


def close(found: torch.Tensor | None, expected: torch.Tensor) -> None:
    assert found is not None
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-5)


@torch.inference_mode()
def test_small_large_small_and_other_splits(tower: PatchTower) -> None:
    graphs, batches = graphs_of(tower), Batches(tower)
    kept = []
    orders: list[list[Grid]] = [
        [(1, 4, 6)],
        [(1, 20, 40)],
        [(1, 6, 4)],  # as many patches as the first, another shape
        [(1, 8, 8), (1, 4, 8), (1, 2, 2)],
        [(1, 4, 8), (1, 8, 8), (1, 2, 2)],  # as many patches, cut elsewhere
        [(1, 10, 10)],
        [(1, 4, 6)],
    ]
    for grids in orders:
        batch, expected = batches(grids)
        found = graphs.run(batch)
        close(found, expected)
        kept.append((found, expected))
    for found, expected in kept:  # what was handed out does not change when others run
        close(found, expected)


@torch.inference_mode()
def test_random_mixes(tower: PatchTower, device: torch.device) -> None:
    graphs, batches, draw = graphs_of(tower), Batches(tower), random.Random(0)
    for _ in range(500 if device.type == "cuda" else 25):
        grids, patches = [], 0
        for _ in range(draw.randint(1, 5)):
            grid = (1, 2 * draw.randint(1, 10), 2 * draw.randint(1, 10))
            if patches + grid[1] * grid[2] <= MOST:
                grids.append(grid)
                patches += grid[1] * grid[2]
        batch, expected = batches(grids)
        close(graphs.run(batch), expected)


@torch.inference_mode()
def test_what_fits_no_bucket_is_left_to_the_tower(tower: PatchTower) -> None:
    graphs, batches = graphs_of(tower), Batches(tower)
    assert graphs.run(batches([(1, 40, 40)])[0]) is None  # more patches than the largest bucket
    assert graphs.run(batches([(1, 2, 2)] * (SEGMENTS[-1] + 1))[0]) is None
    clip = torch.randn(16, tower.patch_width, device=batches.device)
    assert graphs.run(tower.make_batch([clip], [(1, 4, 4)])) is None


@torch.inference_mode()
def test_definitions_are_neither_recorded_nor_replayed(tower: PatchTower) -> None:
    """Red when a reference run gets what kernels computed, or leaves a graph of definitions to later runs."""
    graphs, batches = graphs_of(tower), Batches(tower)
    batch, expected = batches([(1, 4, 6), (1, 8, 8)])
    with definitions_only():
        assert graphs.run(batch) is None
    close(graphs.run(batch), expected)
    with definitions_only():
        assert graphs.run(batch) is None


def test_graphs_are_refused_where_they_cannot_be(tiny_checkpoints: dict[str, Path]) -> None:
    with pytest.raises(ConfigError, match="tower_graphs is on, but"):
        LLM(tiny_checkpoints["qwen3-vl"], device="cpu", tower_graphs=True)


def test_buckets_waste_little(tiny_checkpoints: dict[str, Path]) -> None:
    every = buckets(read_model_spec(tiny_checkpoints["qwen3-vl"]).patch_tower)
    assert all(bucket.patches % 64 == 0 and bucket.patches <= 8192 for bucket in every) and len(every) < 100
    one = [bucket.patches for bucket in every if bucket.segments == 1]
    assert one[0] == 64 and one[-1] == 8192
    assert all(small < large <= max(small + 64, 1.13 * small) for small, large in itertools.pairwise(one))
    for segments in SEGMENTS[1:]:
        several = [bucket.patches for bucket in every if bucket.segments == segments]
        assert several[0] == 512 and several[-1] == 8192
        assert all(small < large <= max(small + 512, 1.26 * small) for small, large in itertools.pairwise(several))


@torch.inference_mode()
def test_what_is_recorded_beforehand_serves_all_images(tower: PatchTower) -> None:
    """Red when a batch that fits a bucket has its graph captured while it waits (but for towers with windows)."""
    graphs, batches = graphs_of(tower), Batches(tower)
    told: list[int] = []
    graphs.capture_all(lambda: told.append(len(graphs)))
    before = len(graphs)
    assert told == list(range(1, before + 1)), "a start that captures graphs must be seen to advance with each"
    for grids in ([(1, 12, 14)], [(1, 12, 14), (1, 4, 4)], [(1, 2, 2)] * SEGMENTS[-1]):
        batch, expected = batches(grids)
        close(graphs.run(batch), expected)
    if tower.spec.window is None:
        assert len(graphs) == before == len(buckets(tower.spec, MOST))
    else:
        assert before == 0 and len(graphs) > 0


@torch.inference_mode()
def test_a_batch_takes_the_smallest_bucket_that_it_fits(tower: PatchTower) -> None:
    graphs, batches = graphs_of(tower), Batches(tower)
    for grids, patches, segments in (([(1, 12, 14)], 192, 1), ([(1, 12, 14), (1, 4, 4)], 512, 4), ([(1, 2, 2)] * 5, 512, 16)):
        bucket = graphs.bucket_of(batches(grids)[0])
        assert bucket is not None and (bucket.patches, bucket.segments) == (patches, segments)
