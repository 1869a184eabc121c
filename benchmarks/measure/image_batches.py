"""Patch embedding, position embedding and rotary positions of whole batches of images, against loops over images.

Both are timed from the call to the end of the work on the device, launches and waits included, on every number of images and
every size, equal and mixed. What the engine replays inside a graph it does even faster: `device` has that time.
"""

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from benchmarks.measure import per_image_reference as reference
from benchmarks.measure.tower import random_tower
from sightline.models.patch_tower import PatchTower
from sightline.ops.patch_positions import patch_positions
from sightline.ops.position_grid import add_position_grid
from sightline.ops.transfer import send
from sightline.ops.tuning.timing import measure_calls
from sightline.spec import ModelSpec, PatchTowerSpec
from sightline.types import Grid

COUNTS = (1, 2, 6, 20, 64)
SIDES = ((64, 64), (224, 224), (560, 560), (720, 1280), (1080, 1920), (1440, 2560))  # height, width
SMALL_COUNTS = (1, 3)
SMALL_SIDES = ((64, 64), (64, 96))
_SECONDS = 0.3  # spent on one figure, at most


@dataclass(frozen=True)
class BatchCost:
    part: str
    shape: str
    patches: int
    reference_us: float
    ours_us: float
    device_us: float  # ours, without launches

    @property
    def faster(self) -> bool:
        return self.ours_us < self.reference_us


def grids_of(sides: Sequence[tuple[int, int]], count: int, spec: PatchTowerSpec) -> list[Grid]:
    """Grids of images whose sides are brought to the nearest that divide, the sizes in turn."""
    unit = spec.patch_embed.patch_size * spec.merge_size
    grids: list[Grid] = []
    for number in range(count):
        height, width = sides[number % len(sides)]
        rows, columns = (max(1, round(side / unit)) * spec.merge_size for side in (height, width))
        grids.append((1, rows, columns))
    return grids


def batch_shapes(
    counts: Sequence[int], sides: Sequence[tuple[int, int]], spec: PatchTowerSpec
) -> Iterator[tuple[str, list[Grid]]]:
    for count in counts:
        for height, width in sides:
            yield f"{count} x {height}x{width}", grids_of([(height, width)], count, spec)
        if count > 1:
            yield f"{count} mixed", grids_of(sides, count, spec)


def entry_tower(spec: ModelSpec, device: torch.device, dtype: torch.dtype) -> PatchTower:
    """Random weights; one block is enough, for only the way in is timed."""
    return random_tower(replace(spec, vision=replace(spec.patch_tower, depth=1, deepstack_layers=())), device, dtype)


@torch.inference_mode()
def measure_batch(tower: PatchTower, shape: str, grids: list[Grid], repeats: int) -> Iterator[BatchCost]:
    spec, weight = tower.spec, tower.patch_embed.weight
    device, dtype = weight.device, weight.dtype
    count = sum(t * h * w for t, h, w in grids)
    patch = spec.patch_embed
    compact = torch.randn(count, patch.compact_width, device=device).to(dtype)
    full = compact.repeat(1, patch.temporal_patch_size)
    kernel = weight.detach().view(-1, patch.in_channels, patch.temporal_patch_size, patch.patch_size, patch.patch_size)
    bias = tower.patch_embed.bias

    def cost(part: str, theirs: Callable[[], Any], ours: Callable[[], Any], inside: Callable[[], Any]) -> BatchCost:
        alone = measure_calls([inside], min(5, repeats), device).microseconds
        return BatchCost(part, shape, count, _wall_us(theirs, repeats, device), _wall_us(ours, repeats, device), alone)

    def embed() -> torch.Tensor:
        made: torch.Tensor = tower.patch_embed((compact,))
        return made

    yield cost("patch embedding", lambda: reference.embed_patches(full, kernel, bias), embed, embed)
    shapes = np.array(grids, np.int32)
    starts = np.concatenate(([0], np.cumsum(shapes.prod(1)))).astype(np.int32)
    on_device = (send(shapes, device), send(starts, device))
    row_col, grid_size = patch_positions(*on_device, count, spec.merge_size)
    grid, table = spec.position_grid, tower.position_table
    if grid is not None and table is not None:
        hidden = embed()

        def positions() -> torch.Tensor:
            return add_position_grid(hidden, table, row_col, grid_size, grid.mode, grid.align_corners)

        def in_loop() -> torch.Tensor:
            return reference.add_positions(hidden, table, grids, spec.merge_size, grid)

        yield cost("position embedding", in_loop, positions, positions)
    half = spec.block.head_dim // 2
    frequencies = 1.0 / spec.rope_theta ** (torch.arange(0, half, 2, device=device) / half)

    def places() -> Any:
        return patch_positions(send(shapes, device), send(starts, device), count, spec.merge_size)

    yield cost(
        "rotary positions",
        lambda: reference.rotary_positions(grids, spec.merge_size, frequencies),
        places,
        lambda: patch_positions(*on_device, count, spec.merge_size),
    )


def _wall_us(run: Callable[[], Any], repeats: int, device: torch.device) -> float:
    """From the call until the device is done; the median of as many as time allows."""

    def once() -> float:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        start = time.perf_counter()
        run()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter() - start

    once()
    first = once()
    more = max(2, min(repeats, int(_SECONDS / first)))
    return 1e6 * statistics.median(once() for _ in range(more))
