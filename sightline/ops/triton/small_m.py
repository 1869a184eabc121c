"""Small-M (skinny) GEMMs, which last as long as it takes to read their weights.

A program multiplies all rows with COLUMNS rows of the weight, INNER numbers at a time, while the next weights are on their way.
Where such tiles are too few or too unequal for the chip, `split` programs share the sums of one tile: each writes its part to
a workspace and counts itself; the one that arrives last adds the parts, always in the same order, and writes the result. So
results are the same bits each time, and a row's do not depend on the rows beside it as long as the tiling is the same.

The matrix units of a Hopper chip that read their operands from shared memory want 64 rows on the left: the weight can give
them, the few rows cannot. So a tiling says which of the two stands there.

Weights in 8-bit floats are read and multiplied as they are, with rows that were quantised before; scales come to the sums.
"""

import functools
from typing import Any

import torch
import triton
import triton.language as tl

from sightline.ops.fp8 import BLOCK, fp8_block_linear, fp8_linear, fp8_linear_silu_mul, quantise_rows
from sightline.ops.linear import SMALL_M, SPLIT_SUMS, TWO_OPS, linear, linear_silu_mul
from sightline.ops.triton import runs_here
from sightline.ops.triton.dependent_launch import has_dependent_launch, launch_dependents
from sightline.ops.triton.small_m_tilings import (
    SMALL_WEIGHT,
    Chip,
    Form,
    Tiling,
    fits_workspace,
    gated_tiling,
    hopper_chip,
    linear_tiling,
    row_bucket,
)
from sightline.ops.workspace import Workspace

Scales = tuple[torch.Tensor, torch.Tensor]  # of x, as quantise_rows gives them, and of the weight


@triton.jit
def _inputs(x, row, rows, size, inner, EVEN: tl.constexpr, WEIGHT_LEFT: tl.constexpr):
    """[ROWS, INNER], or [INNER, ROWS] where they are the right operand."""
    if WEIGHT_LEFT:
        row, inner = row[None, :], inner[:, None]
    else:
        row, inner = row[:, None], inner[None, :]
    inside = row < rows
    if not EVEN:
        inside = inside & (inner < size)
    return tl.load(x + row * size + inner, mask=inside, other=0.0, eviction_policy="evict_last")


@triton.jit
def _weights(weight, source, size, inner, EVEN: tl.constexpr, WEIGHT_LEFT: tl.constexpr):
    """[INNER, COLUMNS]: rows of the weight as columns; [COLUMNS, INNER] where they are the left operand."""
    if WEIGHT_LEFT:
        source, inner = source[:, None], inner[None, :]
    else:
        source, inner = source[None, :], inner[:, None]
    pointers = weight + source * size + inner
    if EVEN:
        return tl.load(pointers, eviction_policy="evict_first")
    return tl.load(pointers, mask=inner < size, other=0.0, eviction_policy="evict_first")


@triton.jit
def _multiply_add(
    total, inputs, weights, x_scale, weight_scale, row, rows, source, step, steps, SCALES: tl.constexpr,
    WEIGHT_LEFT: tl.constexpr,
):  # fmt: skip
    """SCALES 2: each 128 numbers of a row have one, and each 128 x 128 of the weight; a step is one of these."""
    if SCALES == 2:
        of_rows = tl.load(x_scale + row * steps + step, mask=row < rows, other=0.0)
        of_columns = tl.load(weight_scale + source // 128 * steps + step)
        if WEIGHT_LEFT:
            return total + tl.dot(weights, inputs) * of_rows[None, :] * of_columns[:, None]
        else:
            return total + tl.dot(inputs, weights) * of_rows[:, None] * of_columns[None, :]
    elif WEIGHT_LEFT:
        return tl.dot(weights, inputs, total)
    else:
        return tl.dot(inputs, weights, total)


@triton.jit
def _scaled(total, x_scale, weight_scale, row, rows, source, SCALES: tl.constexpr):
    """[ROWS, COLUMNS]. SCALES 1: each row and each column has one."""
    if SCALES == 1:
        of_rows = tl.load(x_scale + row, mask=row < rows, other=0.0)
        return total * of_rows[:, None] * tl.load(weight_scale + source)[None, :]
    else:
        return total


@triton.jit
def _finish(
    total, bias, x_scale, weight_scale, out, row, column, source, rows, width, HAS_BIAS: tl.constexpr, SCALES: tl.constexpr
):  # fmt: skip
    total = _scaled(total, x_scale, weight_scale, row, rows, source, SCALES)
    if HAS_BIAS:
        total += tl.load(bias + column, mask=column < width, other=0.0).to(tl.float32)[None, :]
    inside = (row[:, None] < rows) & (column[None, :] < width)
    tl.store(out + row[:, None] * width + column[None, :], total.to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["rows", "split"])
def _linear(
    x, weight, bias, x_scale, weight_scale, out, parts, arrived, rows, width, size, split, HAS_BIAS: tl.constexpr,
    SCALES: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, INNER: tl.constexpr, EVEN: tl.constexpr,
    JOIN: tl.constexpr, WEIGHT_LEFT: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One part of one tile. parts [split, rows, width], arrived [tiles]: how many parts of a tile are written, 0 in the end."""
    tile, part = tl.program_id(0), tl.program_id(1)
    row = tl.arange(0, ROWS)
    column = tile * COLUMNS + tl.arange(0, COLUMNS)
    source = tl.minimum(column, width - 1).to(tl.int64)  # beyond the last: read again, not stored
    steps = tl.cdiv(size, INNER)
    each = tl.cdiv(steps, split)
    first = part * each
    last = tl.minimum(first + each, steps)
    total = tl.zeros((COLUMNS, ROWS) if WEIGHT_LEFT else (ROWS, COLUMNS), tl.float32)
    for step in range(first, last):
        inner = step * INNER + tl.arange(0, INNER)
        inputs = _inputs(x, row, rows, size, inner, EVEN, WEIGHT_LEFT)
        weights = _weights(weight, source, size, inner, EVEN, WEIGHT_LEFT)
        total = _multiply_add(
            total, inputs, weights, x_scale, weight_scale, row, rows, source, step, steps, SCALES, WEIGHT_LEFT
        )  # fmt: skip
    launch_dependents(PDL)
    if WEIGHT_LEFT:
        total = tl.trans(total)
    if JOIN:
        inside = (row[:, None] < rows) & (column[None, :] < width)
        pointers = parts + row[:, None] * width + column[None, :]
        tl.store(pointers + part * rows * width, total, mask=inside)
        tl.debug_barrier()  # the whole program has written before it is counted
        if tl.atomic_add(arrived + tile, 1, sem="acq_rel") == split - 1:
            joined = tl.zeros((ROWS, COLUMNS), tl.float32)
            for number in range(split):
                joined += tl.load(pointers + number * rows * width, mask=inside, other=0.0, cache_modifier=".cg")
            tl.store(arrived + tile, 0)
            _finish(joined, bias, x_scale, weight_scale, out, row, column, source, rows, width, HAS_BIAS, SCALES)
    else:
        _finish(total, bias, x_scale, weight_scale, out, row, column, source, rows, width, HAS_BIAS, SCALES)


@triton.jit(do_not_specialize=["rows"])
def _linear_silu_mul(
    x, weight, x_scale, weight_scale, out, rows, width, size, SCALES: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    INNER: tl.constexpr, EVEN: tl.constexpr, WEIGHT_LEFT: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """The same columns of gate and up in one program. width: of the result, half of the weight's rows."""
    row = tl.arange(0, ROWS)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    source = tl.minimum(column, width - 1).to(tl.int64)
    steps = tl.cdiv(size, INNER)
    gate = tl.zeros((COLUMNS, ROWS) if WEIGHT_LEFT else (ROWS, COLUMNS), tl.float32)
    up = tl.zeros((COLUMNS, ROWS) if WEIGHT_LEFT else (ROWS, COLUMNS), tl.float32)
    for step in range(steps):
        inner = step * INNER + tl.arange(0, INNER)
        inputs = _inputs(x, row, rows, size, inner, EVEN, WEIGHT_LEFT)
        weights = _weights(weight, source, size, inner, EVEN, WEIGHT_LEFT)
        gate = _multiply_add(
            gate, inputs, weights, x_scale, weight_scale, row, rows, source, step, steps, SCALES, WEIGHT_LEFT
        )  # fmt: skip
        weights = _weights(weight, source + width, size, inner, EVEN, WEIGHT_LEFT)
        up = _multiply_add(
            up, inputs, weights, x_scale, weight_scale, row, rows, source + width, step, steps, SCALES, WEIGHT_LEFT
        )  # fmt: skip
    launch_dependents(PDL)
    if WEIGHT_LEFT:
        gate, up = tl.trans(gate), tl.trans(up)
    gate = _scaled(gate, x_scale, weight_scale, row, rows, source, SCALES)
    up = _scaled(up, x_scale, weight_scale, row, rows, source + width, SCALES)
    kind = out.dtype.element_ty  # rounded where the separate ops round
    gate = gate.to(kind).to(tl.float32)
    silu = (gate / (1.0 + tl.exp(-gate))).to(kind).to(tl.float32)
    inside = (row[:, None] < rows) & (column[None, :] < width)
    gated = silu * up.to(kind).to(tl.float32)
    tl.store(out + row[:, None] * width + column[None, :], gated.to(kind), mask=inside)


def run_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    tiling: Tiling,
    workspace: Workspace,
    scales: Scales | None = None,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """The product with a given tiling. x [rows, size], weight [width, size], bias [width] or None. `scales` and the result's
    dtype are for 8-bit floats."""
    rows, size = x.shape
    width = weight.shape[0]
    assert fits_workspace(rows, width, tiling), f"{tiling} of {rows} x {width} needs a larger workspace"
    out = x.new_empty(rows, width, dtype=dtype)
    arrived, parts = workspace.take(*SPLIT_SUMS)
    grid = (triton.cdiv(width, tiling.columns), tiling.split)
    kind, of_rows, of_weight = _kind_of(scales, tiling, out)
    _linear[grid](
        x, weight, out if bias is None else bias, of_rows, of_weight, out, parts, arrived, rows, width, size, tiling.split,
        bias is not None, kind, row_bucket(rows), tiling.columns, tiling.inner, size % tiling.inner == 0, tiling.split > 1,
        **_launch(tiling, x.device),
    )  # fmt: skip
    return out


def run_linear_silu_mul(
    x: torch.Tensor, weight: torch.Tensor, tiling: Tiling, scales: Scales | None = None, dtype: torch.dtype | None = None
) -> torch.Tensor:
    """The same for gate and up. x [rows, size], weight [2 * width, size] -> [rows, width]; sums are not shared."""
    rows, size = x.shape
    width = weight.shape[0] // 2
    assert tiling.split == 1, f"{tiling}: gate and up are not split"
    out = x.new_empty(rows, width, dtype=dtype)
    kind, of_rows, of_weight = _kind_of(scales, tiling, out)
    _linear_silu_mul[(triton.cdiv(width, tiling.columns),)](
        x, weight, of_rows, of_weight, out, rows, width, size, kind, row_bucket(rows), tiling.columns, tiling.inner,
        size % tiling.inner == 0, **_launch(tiling, x.device),
    )  # fmt: skip
    return out


def _kind_of(scales: Scales | None, tiling: Tiling, out: torch.Tensor) -> tuple[int, torch.Tensor, torch.Tensor]:
    """(SCALES, those of rows, those of the weight)"""
    if scales is None:
        return 0, out, out
    of_rows, of_weight = scales
    assert of_weight.ndim == 1 or tiling.inner == BLOCK, f"{tiling} takes more or less than a block at a time"
    return of_weight.ndim, of_rows, of_weight


def _launch(tiling: Tiling, device: torch.device) -> dict[str, Any]:
    shape = {"num_warps": tiling.warps, "num_stages": tiling.stages, "WEIGHT_LEFT": tiling.weight_left}
    return {**shape, "PDL": has_dependent_launch(device)}


def _tiling(x: torch.Tensor, weight: torch.Tensor, width: int, gated: bool, scale: torch.Tensor | None = None) -> Tiling | None:
    """None where the library is to be used. `scale`: of a weight in 8-bit floats."""
    if not (x.ndim == 2 and 0 < x.shape[0] <= SMALL_M and x.is_contiguous() and weight.is_contiguous()):
        return None
    if not (runs_here(x) and _multiplies(x, scale is not None) and x.numel() > 0 and width > 0):
        return None
    rows, size = x.shape
    if weight.numel() <= SMALL_WEIGHT:
        steps = -(-size // 128)
        return Tiling(32, 128, split=1 if gated else min(8, max(1, steps // 2)), warps=4, stages=4)
    chip = _hopper(x.device)
    if chip is None:
        return None
    return (gated_tiling if gated else linear_tiling)(rows, width, size, _form(scale), chip)


def _form(scale: torch.Tensor | None) -> Form:
    if scale is None:
        return "16-bit"
    return "fp8" if scale.ndim == 1 else "fp8 blocks"


def _multiplies(x: torch.Tensor, fp8: bool) -> bool:
    """Matrix units take 16-bit floats; float32 would be rounded there. What becomes 8-bit floats is bfloat16 before."""
    if not x.is_cuda:
        return True
    return x.dtype == torch.bfloat16 or (x.dtype == torch.float16 and not fp8)


@functools.cache
def _hopper(device: torch.device) -> Chip | None:
    return hopper_chip(device)


def _takes(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, workspace: Workspace | None = None) -> bool:
    return workspace is not None and _tiling(x, weight, weight.shape[0], False) is not None


@linear.kernel("triton", when=_takes, graph_safe=True, uses_workspace=True)
def linear_triton(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, workspace: Workspace | None = None
) -> torch.Tensor:
    tiling = _tiling(x, weight, weight.shape[0], False)
    assert tiling is not None and workspace is not None
    return run_linear(x, weight, bias, tiling, workspace)


def _takes_gate_up(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> bool:
    return bias is None and _tiling(x, weight, weight.shape[0] // 2, True) is not None


@linear_silu_mul.kernel("triton", when=_takes_gate_up, graph_safe=True, before=TWO_OPS)
def linear_silu_mul_triton(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    tiling = _tiling(x, weight, weight.shape[0] // 2, True)
    assert tiling is not None
    return run_linear_silu_mul(x, weight, tiling)


# ---- 8-bit floats


def _takes_fp8(
    x: torch.Tensor,
    weight: torch.Tensor,
    weight_scale: torch.Tensor,
    bias: torch.Tensor | None,
    workspace: Workspace | None = None,
) -> bool:
    return workspace is not None and _tiling(x, weight, weight.shape[0], False, weight_scale) is not None


def _fp8_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    weight_scale: torch.Tensor,
    bias: torch.Tensor | None,
    workspace: Workspace | None = None,
) -> torch.Tensor:
    tiling = _tiling(x, weight, weight.shape[0], False, weight_scale)
    assert tiling is not None and workspace is not None
    values, scale = quantise_rows(x, _group(x, weight_scale))
    return run_linear(values, weight, bias, tiling, workspace, (scale, weight_scale), x.dtype)


fp8_linear.kernel("triton", when=_takes_fp8, graph_safe=True, before="scaled_mm", uses_workspace=True)(_fp8_linear)
fp8_block_linear.kernel("triton few rows", when=_takes_fp8, graph_safe=True, before="triton", uses_workspace=True)(_fp8_linear)


def _takes_fp8_gate_up(
    x: torch.Tensor,
    weight: torch.Tensor,
    weight_scale: torch.Tensor,
    bias: torch.Tensor | None,
    workspace: Workspace | None = None,
) -> bool:
    # Without a workspace it is a tower's, which has its own stream: as for the GEMMs.
    return bias is None and workspace is not None and _tiling(x, weight, weight.shape[0] // 2, True, weight_scale) is not None


@fp8_linear_silu_mul.kernel("triton", when=_takes_fp8_gate_up, graph_safe=True, before=TWO_OPS)
def fp8_linear_silu_mul_triton(
    x: torch.Tensor,
    weight: torch.Tensor,
    weight_scale: torch.Tensor,
    bias: torch.Tensor | None,
    workspace: Workspace | None = None,
) -> torch.Tensor:
    tiling = _tiling(x, weight, weight.shape[0] // 2, True, weight_scale)
    assert tiling is not None
    values, scale = quantise_rows(x, _group(x, weight_scale))
    return run_linear_silu_mul(values, weight, tiling, (scale, weight_scale), x.dtype)


def _group(x: torch.Tensor, weight_scale: torch.Tensor) -> int:
    """Numbers of a row that share a scale."""
    return x.shape[1] if weight_scale.ndim == 1 else BLOCK
