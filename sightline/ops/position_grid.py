"""Learned position embeddings, resampled from their square table to each image's grid, one patch at a time.

Every patch knows its (row, col) and its image's (height, width) in patches, so a whole batch of images of different sizes is
one gather of 4 (bilinear) or 16 (bicubic) taps per patch; no loop over images.
"""

from collections.abc import Iterator
from typing import Any, Literal

import torch

from sightline.ops.dispatch import ExampleMaker, Tolerance, op

KEYS_A = -0.75  # the cubic kernel's parameter in torch's grid_sample and interpolate


def interpolate_position_grid(
    table: torch.Tensor,
    row_col: torch.Tensor,
    grid_size: torch.Tensor,
    mode: Literal["bilinear", "bicubic"],
    align_corners: bool,
) -> torch.Tensor:
    """Position embedding of each patch, [patches, size], summed in float32 and rounded to the table's dtype.

    table [side * side, size], row_col [patches, 2] int, grid_size [patches, 2] int: (height, width) of the patch's image.
    Taps outside the table repeat its border.
    """
    side = round(table.shape[0] ** 0.5)
    taps, weights = _axis_taps(row_col, grid_size, side, mode, align_corners)  # [patches, 2, taps] each
    index = taps[:, 0, :, None] * side + taps[:, 1, None, :]
    weight = weights[:, 0, :, None] * weights[:, 1, None, :]
    total = torch.zeros(row_col.shape[0], table.shape[1], dtype=torch.float32, device=table.device)
    for tap_index, tap_weight in zip(index.flatten(1).unbind(1), weight.flatten(1).unbind(1), strict=True):
        total += tap_weight[:, None] * table[tap_index]  # one tap at a time: taps² times less memory than one gather
    return total.to(table.dtype)


def _examples(make: ExampleMaker) -> Iterator[dict[str, Any]]:
    modes: tuple[tuple[str, bool], ...] = (("bilinear", True), ("bilinear", False), ("bicubic", False))
    for mode, align_corners in modes:
        size = make.integers(1, 40, 50, 2)
        yield {
            "hidden": make.normal(50, 24),
            "table": make.normal(36, 24),
            "row_col": make.integers(0, 1000, 50, 2) % size,
            "grid_size": size,
            "mode": mode,
            "align_corners": align_corners,
        }


@op(examples=_examples, tolerances={torch.float32: Tolerance(1e-5, 1e-5), torch.bfloat16: Tolerance(2e-2, 1.6e-2)})
def add_position_grid(
    hidden: torch.Tensor,
    table: torch.Tensor,
    row_col: torch.Tensor,
    grid_size: torch.Tensor,
    mode: Literal["bilinear", "bicubic"],
    align_corners: bool,
) -> torch.Tensor:
    """hidden [patches, size] plus the position embedding of each patch; the other arguments as above."""
    return hidden + interpolate_position_grid(table, row_col, grid_size, mode, align_corners)


def _axis_taps(
    coordinate: torch.Tensor, count: torch.Tensor, side: int, mode: str, align_corners: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Indices into an axis of `side` entries and their weights, for a coordinate on an axis of `count`; adds a last axis."""
    position = coordinate.float()
    if align_corners:
        source = position * (side - 1) / (count - 1).clamp(min=1)
    else:
        source = (position + 0.5) * side / count - 0.5
    floor = source.floor()
    offsets = torch.arange(2, device=position.device) if mode == "bilinear" else torch.arange(-1, 3, device=position.device)
    distance = ((source - floor)[..., None] - offsets).abs()
    if mode == "bilinear":
        weights = 1 - distance
    else:
        near = ((KEYS_A + 2) * distance - (KEYS_A + 3)) * distance.square() + 1
        far = ((distance - 5) * distance + 8) * distance * KEYS_A - 4 * KEYS_A
        weights = torch.where(distance <= 1, near, far)
    return (floor.long()[..., None] + offsets).clamp(0, side - 1), weights
