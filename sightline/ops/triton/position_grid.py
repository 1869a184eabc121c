"""Learned positions, resampled and added to a whole batch of patches in one launch. The table stays in the caches."""

from typing import Literal

import torch
import triton
import triton.language as tl

from sightline.ops.position_grid import KEYS_A, add_position_grid
from sightline.ops.triton import runs_here

_PATCHES, _COLUMNS = 4, 256


@triton.jit
def _weight(distance, CUBIC: tl.constexpr, a: tl.constexpr):
    """Of a tap at this distance: the triangle's, or that of Keys' cubic kernel."""
    distance = tl.abs(distance)
    if CUBIC:
        near = ((a + 2) * distance - (a + 3)) * distance * distance + 1
        far = ((distance - 5) * distance + 8) * distance * a - 4 * a
        return tl.where(distance <= 1, near, far)
    return 1 - distance


@triton.jit(do_not_specialize=["patches"])
def _add_positions(
    hidden, table, row_col, sizes, out, patches, width, side: tl.constexpr,
    CUBIC: tl.constexpr, ALIGN: tl.constexpr, KEYS: tl.constexpr, BLOCK_PATCHES: tl.constexpr, BLOCK_COLUMNS: tl.constexpr,
):  # fmt: skip
    patch = tl.program_id(0) * BLOCK_PATCHES + tl.arange(0, BLOCK_PATCHES)
    column = tl.program_id(1) * BLOCK_COLUMNS + tl.arange(0, BLOCK_COLUMNS)
    known = patch < patches
    inside = known[:, None] & (column < width)[None, :]
    row = tl.load(row_col + 2 * patch, mask=known, other=0).to(tl.float32)
    col = tl.load(row_col + 2 * patch + 1, mask=known, other=0).to(tl.float32)
    high = tl.load(sizes + 2 * patch, mask=known, other=1).to(tl.float32)
    wide = tl.load(sizes + 2 * patch + 1, mask=known, other=1).to(tl.float32)
    if ALIGN:
        down = row * (side - 1) / tl.maximum(high - 1, 1.0)
        across = col * (side - 1) / tl.maximum(wide - 1, 1.0)
    else:
        down = (row + 0.5) * side / high - 0.5
        across = (col + 0.5) * side / wide - 0.5
    first_row, first_col = tl.floor(down), tl.floor(across)
    total = tl.zeros([BLOCK_PATCHES, BLOCK_COLUMNS], tl.float32)
    first: tl.constexpr = -1 if CUBIC else 0
    taps: tl.constexpr = 4 if CUBIC else 2
    for step_down in tl.static_range(taps):
        weight_down = _weight(down - first_row - (first + step_down), CUBIC, KEYS)
        at_row = tl.minimum(tl.maximum(first_row.to(tl.int32) + first + step_down, 0), side - 1)
        for step_across in tl.static_range(taps):
            weight = weight_down * _weight(across - first_col - (first + step_across), CUBIC, KEYS)
            at_col = tl.minimum(tl.maximum(first_col.to(tl.int32) + first + step_across, 0), side - 1)
            tap = table + (at_row * side + at_col)[:, None] * width + column[None, :]
            total += weight[:, None] * tl.load(tap, mask=inside, other=0.0).to(tl.float32)
    address = patch.to(tl.int64)[:, None] * width + column[None, :]
    value = tl.load(hidden + address, mask=inside)
    rounded = total.to(value.dtype).to(tl.float32)
    tl.store(out + address, (value.to(tl.float32) + rounded).to(value.dtype), mask=inside)


def _takes(hidden: torch.Tensor, table: torch.Tensor, *_: object, **__: object) -> bool:
    whole = hidden.is_contiguous() and table.is_contiguous() and hidden.dtype == table.dtype
    return whole and len(hidden) > 0 and runs_here(hidden)


@add_position_grid.kernel("triton", when=_takes)
def add_position_grid_triton(
    hidden: torch.Tensor,
    table: torch.Tensor,
    row_col: torch.Tensor,
    grid_size: torch.Tensor,
    mode: Literal["bilinear", "bicubic"],
    align_corners: bool,
) -> torch.Tensor:
    patches, width = hidden.shape
    side = round(table.shape[0] ** 0.5)
    out = torch.empty_like(hidden)
    grid = (triton.cdiv(patches, _PATCHES), triton.cdiv(width, _COLUMNS))
    _add_positions[grid](
        hidden, table, row_col, grid_size, out, patches, width, side,
        mode == "bicubic", align_corners, KEYS_A, _PATCHES, _COLUMNS,
    )  # fmt: skip
    return out
