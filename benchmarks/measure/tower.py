"""What the vision tower costs, image by image size, and what its small parts cost beside their floors.

The tower runs alone, with random weights of a checkpoint's sizes, on random patches. `eager` is launched op by op, `graph` is a
replay of the same launches captured once: the difference is what launching costs. `floor` is the arithmetic at the rate given.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch

from sightline.models.patch_tower import PatchTower, TowerBlock
from sightline.models.registry import family_named
from sightline.models.tower_batch import TowerBatch, make_tower_batch
from sightline.ops.dispatch import definitions_only
from sightline.ops.kernels import register_kernels
from sightline.ops.patch_positions import patch_positions
from sightline.ops.position_grid import add_position_grid
from sightline.ops.rotary import vision_rotary
from sightline.spec import ModelSpec, PatchTowerSpec
from sightline.types import Grid

# Names of the figures, and the grids of Qwen3-VL's patches of 16 pixels.
SHAPES: dict[str, list[Grid]] = {
    "560": [(1, 36, 36)],
    "720p": [(1, 44, 80)],
    "1080p": [(1, 68, 120)],
    "2k": [(1, 90, 160)],
    "4x560": [(1, 36, 36)] * 4,
    "16x560": [(1, 36, 36)] * 16,
    "20x960x1280": [(1, 60, 80)] * 20,
}


@dataclass(frozen=True)
class TowerCost:
    name: str
    patches: int
    definition_ms: float | None  # torch definitions, launched one by one
    eager_ms: float
    graph_ms: float | None
    launch_ms: float | None  # time of the host to replay the graph
    floor_ms: float  # operations at the rate given


@dataclass(frozen=True)
class PartCost:
    name: str
    microseconds: float
    definition_microseconds: float
    bytes_moved: int  # at least

    @property
    def terabytes_per_second(self) -> float:
        return self.bytes_moved / self.microseconds / 1e6


def random_tower(spec: ModelSpec, device: torch.device, dtype: torch.dtype) -> PatchTower:
    """Of a family that has the shared tower; another is a ConfigError."""
    register_kernels()
    _ = spec.patch_tower
    with torch.device("meta"):
        tower = family_named(spec.family).tower(spec)
    assert isinstance(tower, PatchTower)
    tower = tower.to_empty(device=device).to(dtype)
    generator = torch.Generator(device).manual_seed(0)
    for name, parameter in tower.named_parameters():
        parameter.data.normal_(0.0, 0.02, generator=generator)
        if "norm" in name and name.endswith("weight"):
            parameter.data += 1.0
    tower.prepare()
    return tower.requires_grad_(False).eval()


def operations(spec: PatchTowerSpec, grids: list[Grid]) -> float:
    """Multiplications and additions of blocks and mergers for these grids (heads unpadded, patches folded)."""
    patches = sum(t * h * w for t, h, w in grids)
    size = spec.block.hidden_size
    per_patch = 4 * size * size + spec.block.mlp_matrices * size * spec.block.intermediate_size
    linear = 2.0 * patches * (spec.depth * per_patch + size * spec.patch_embed.compact_width)
    attention = sum(4.0 * t * (h * w) ** 2 * size for t, h, w in grids) * spec.depth
    joined = spec.joined_size
    mergers = 2.0 * patches / spec.merge_size**2 * joined * (joined + spec.out_hidden_size) * (1 + len(spec.deepstack_layers))
    return linear + attention + mergers


def random_batch(spec: PatchTowerSpec, grids: list[Grid], device: torch.device, dtype: torch.dtype) -> TowerBatch:
    width = spec.patch_embed.compact_width
    patches = [torch.randn(t * h * w, width, device=device).to(dtype) for t, h, w in grids]
    return make_tower_batch(patches, grids, spec, device)


@torch.inference_mode()
def measure_tower(tower: PatchTower, name: str, grids: list[Grid], rate: float, repeats: int, slow: bool) -> TowerCost:
    """`rate` in operations per second; `slow` also times the definitions."""
    weight = tower.patch_embed.weight
    batch = random_batch(tower.spec, grids, weight.device, weight.dtype)
    definition = None
    if slow:
        with definitions_only():
            definition = _median_ms(lambda: tower(batch), max(3, repeats // 4))
    eager = _median_ms(lambda: tower(batch), repeats)
    graph_ms = launch = None
    if weight.is_cuda:
        graph = _captured(lambda: tower(batch))
        graph_ms = _median_ms(graph.replay, repeats)
        launch = _host_ms(graph.replay, repeats)
    patches = sum(t * h * w for t, h, w in grids)
    return TowerCost(name, patches, definition, eager, graph_ms, launch, 1000 * operations(tower.spec, grids) / rate)


@torch.inference_mode()
def measure_parts(tower: PatchTower, repeats: int) -> list[PartCost]:
    """Small kernels of the tower at the sizes that figures are asked for."""
    spec, weight = tower.spec, tower.patch_embed.weight
    device, dtype = weight.device, weight.dtype
    found = []

    def part(name: str, run: Callable[[], Any], moved: int) -> None:
        graph_us = 1000 * _device_ms(run, repeats)
        with definitions_only():
            slow_us = 1000 * _device_ms(run, repeats)
        found.append(PartCost(name, graph_us, slow_us, moved))

    one = random_batch(spec, SHAPES["1080p"], device, dtype)
    patches, heads = len(one.row_col), spec.block.num_heads
    block = tower.blocks[0]
    assert isinstance(block, TowerBlock)
    qkv = torch.randn(patches, 3, heads, block.proj.weight.shape[1] // heads, device=device).to(dtype)
    row_col = one.row_col.T.contiguous().T
    part(
        f"rotary {patches}x{heads}x{spec.block.head_dim}",
        lambda: vision_rotary(qkv, row_col, tower.rotary),
        2 * 2 * patches * heads * spec.block.head_dim * dtype.itemsize,  # q and k, read and written
    )
    grids = torch.tensor(SHAPES["1080p"], dtype=torch.int32, device=device)
    starts = torch.tensor([0, patches], dtype=torch.int32, device=device)
    part("rotary positions 1080p", lambda: patch_positions(grids, starts, patches, spec.merge_size), 16 * patches)
    many = random_batch(spec, SHAPES["20x960x1280"], device, dtype)
    hidden = tower.patch_embed(many.patches)
    part(f"patch embedding {len(hidden)}", lambda: tower.patch_embed(many.patches), hidden.nbytes + many.patches[0].nbytes)
    table, grid = tower.position_table, spec.position_grid
    if table is not None and grid is not None:
        part(
            "position embedding 20x960x1280",
            lambda: add_position_grid(hidden, table, many.row_col, many.grid_size, grid.mode, grid.align_corners),
            2 * hidden.nbytes,
        )
    x = torch.randn(patches, spec.block.hidden_size, device=device).to(dtype)
    part(f"norm {patches}", lambda: block.norm1(x), 2 * x.nbytes)
    return found


def _captured(run: Callable[[], Any]) -> "torch.cuda.CUDAGraph":
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph


def _median_ms(run: Callable[[], Any], repeats: int) -> float:
    """From call to completion, one at a time."""
    times = []
    for _ in range(repeats + 2):
        _wait()
        start = time.perf_counter()
        run()
        _wait()
        times.append(1000 * (time.perf_counter() - start))
    return statistics.median(times[2:])


def _host_ms(run: Callable[[], Any], repeats: int) -> float:
    """What the call takes of the host, on an idle device."""
    times = []
    for _ in range(repeats):
        _wait()
        start = time.perf_counter()
        run()
        times.append(1000 * (time.perf_counter() - start))
    _wait()
    return statistics.median(times)


def _device_ms(run: Callable[[], Any], repeats: int) -> float:
    """Time on the device of one call among many, without what launching costs; on a CPU the plain time."""
    if not torch.cuda.is_available():
        return _median_ms(run, repeats)
    graph = torch.cuda.CUDAGraph()
    run()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        for _ in range(10):
            run()
    times = []
    for _ in range(repeats + 2):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / 10)
    return float(statistics.median(times[2:]))


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def figures(costs: list[TowerCost], parts: list[PartCost], copy_bandwidth: float) -> dict[str, float]:
    """By the keys of summary.json; `copy_bandwidth` in TB/s, read and written."""
    found = {}
    for cost in costs:
        best = cost.graph_ms if cost.graph_ms is not None else cost.eager_ms
        found[f"tower_ms.{cost.name}"] = best
        if cost.launch_ms is not None:
            found[f"tower_launch_ms.{cost.name}"] = cost.launch_ms
    for part in parts:
        if part.name.startswith("rotary positions"):
            found["rotary_positions_us.1080p"] = part.microseconds
        elif part.name.startswith("rotary"):
            found[f"rotary_bw_share.{part.name.split()[1]}"] = part.terabytes_per_second / copy_bandwidth
        elif part.name.startswith("patch embedding"):
            found["patch_embed_ms.96000"] = part.microseconds / 1000
        elif part.name.startswith("position embedding"):
            found["pos_embed_ms.20x960x1280"] = part.microseconds / 1000
    return found


def as_json(costs: list[TowerCost], parts: list[PartCost]) -> dict[str, object]:
    return {
        "torch": torch.__version__,
        "tower": [asdict(cost) for cost in costs],
        "parts": [{**asdict(part), "terabytes_per_second": part.terabytes_per_second} for part in parts],
    }
