"""Rows to 8-bit floats in one pass, and the product of matrices whose blocks have scales."""

import torch
import triton
import triton.language as tl

from sightline.ops.fp8 import BLOCK, FP8, INVERSE, SMALLEST_MAXIMUM, fp8_block_linear, quantise_rows
from sightline.ops.triton import next_power_of_2, runs_here
from sightline.ops.triton.dependent_launch import dependent_launch, wait_for_dependencies
from sightline.ops.workspace import Workspace

_MOST = 32768  # numbers that share a scale, which a program holds at once
_TILE = 2048  # numbers of one program where groups are small


@triton.jit
def _quantise(
    x, values, scales, row_stride, size, groups, group: tl.constexpr, INVERSE: tl.constexpr, SMALLEST: tl.constexpr,
    GROUPS: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """A program takes GROUPS groups of one row, each laid out in BLOCK places."""
    wait_for_dependencies(PDL)
    row = tl.program_id(0).to(tl.int64)
    number = tl.program_id(1) * GROUPS + tl.arange(0, GROUPS)
    offset = tl.arange(0, BLOCK)
    column = number[:, None] * group + offset[None, :]
    inside = (offset[None, :] < group) & (column < size)
    wide = tl.load(x + row * row_stride + column, mask=inside, other=0.0).to(tl.float32)
    scale = tl.maximum(tl.max(tl.abs(wide), 1), SMALLEST) * INVERSE
    tl.store(scales + row * groups + number, scale, mask=number < groups)
    quantised = tl.div_rn(wide, tl.broadcast_to(scale[:, None], (GROUPS, BLOCK)))
    tl.store(values + row * size + column, quantised.to(values.dtype.element_ty), mask=inside)


def _has_rows(x: torch.Tensor, group: int) -> bool:
    return x.ndim == 2 and x.numel() > 0 and x.stride(1) == 1 and group <= _MOST and runs_here(x)


@quantise_rows.kernel("triton", when=_has_rows, graph_safe=True)
def quantise_rows_triton(x: torch.Tensor, group: int) -> tuple[torch.Tensor, torch.Tensor]:
    rows, size = x.shape
    groups = -(-size // group)
    values = torch.empty(rows, size, dtype=FP8, device=x.device)
    scales = torch.empty(rows, groups, dtype=torch.float32, device=x.device)
    block = next_power_of_2(group)
    several = min(next_power_of_2(groups), max(1, _TILE // block))
    _quantise[(rows, -(-groups // several))](
        x, values, scales, x.stride(0), size, groups, group, INVERSE, SMALLEST_MAXIMUM, several, block,
        num_warps=min(16, max(1, several * block // 512)), **dependent_launch(rows, x.device),
    )  # fmt: skip
    return values, scales


@triton.jit(do_not_specialize=["rows"])
def _block_matmul(
    x, x_scale, weight, weight_scale, bias, out, rows, width, size,
    HAS_BIAS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One tile [ROWS, COLUMNS] of the product. COLUMNS divides BLOCK, so that a tile meets one scale per BLOCK of `size`."""
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    column = (tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)).to(tl.int64)
    steps = tl.cdiv(size, BLOCK)
    weight_scale += (tl.program_id(1) * COLUMNS // BLOCK) * steps
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for step in range(steps):
        inner = step * BLOCK + tl.arange(0, BLOCK)
        x_inside = (row[:, None] < rows) & (inner[None, :] < size)
        left = tl.load(x + row[:, None] * size + inner[None, :], mask=x_inside, other=0.0)
        weight_inside = (inner[:, None] < size) & (column[None, :] < width)
        right = tl.load(weight + column[None, :] * size + inner[:, None], mask=weight_inside, other=0.0)
        scale = tl.load(x_scale + row * steps + step, mask=row < rows, other=0.0) * tl.load(weight_scale + step)
        total += tl.dot(left, right) * scale[:, None]
    if HAS_BIAS:
        total += tl.load(bias + column, mask=column < width, other=0.0).to(tl.float32)[None, :]
    tl.store(
        out + row[:, None] * width + column[None, :],
        total.to(out.dtype.element_ty),
        mask=(row[:, None] < rows) & (column[None, :] < width),
    )


def _fits(
    x: torch.Tensor,
    weight: torch.Tensor,
    weight_scale: torch.Tensor,
    bias: torch.Tensor | None,
    workspace: Workspace | None = None,
) -> bool:
    contiguous = weight.is_contiguous() and weight_scale.is_contiguous()
    return x.ndim == 2 and x.numel() > 0 and contiguous and weight.shape[1] % 16 == 0 and _takes_fp8(x)


def _takes_fp8(x: torch.Tensor) -> bool:
    """On a GPU in bfloat16 only: matrix units add products of 8-bit floats too roughly for float32."""
    if not x.is_cuda:
        return runs_here(x)
    return x.dtype == torch.bfloat16 and torch.cuda.get_device_capability(x.device) >= (8, 9)


@fp8_block_linear.kernel("triton", when=_fits, graph_safe=True)
def fp8_block_linear_triton(
    x: torch.Tensor,
    weight: torch.Tensor,
    weight_scale: torch.Tensor,
    bias: torch.Tensor | None,
    workspace: Workspace | None = None,
) -> torch.Tensor:
    values, scale = quantise_rows(x, BLOCK)
    rows, size = x.shape
    width = weight.shape[0]
    out = torch.empty(rows, width, dtype=x.dtype, device=x.device)
    # Few rows: the weights are what is read, by as many programs as there are; many rows: tiles that the matrix units fill.
    tile_rows, tile_columns, warps = (16, 32, 4) if rows <= 16 else (64, 64, 4) if rows <= 256 else (128, 128, 8)
    grid = (triton.cdiv(rows, tile_rows), triton.cdiv(width, tile_columns))
    _block_matmul[grid](
        values, scale, weight, weight_scale, out if bias is None else bias, out, rows, width, size,
        bias is not None, tile_rows, tile_columns, BLOCK, num_warps=warps, num_stages=4,
    )  # fmt: skip
    return out
