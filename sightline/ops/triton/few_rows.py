"""Linear maps of few rows, which last as long as it takes to read their weights.

A program multiplies all rows with COLUMNS rows of the weight, INNER numbers at a time, while the next weights are on their way.
Where such tiles are too few or too unequal for the chip, `split` programs share the sums of one tile: each writes its part to
scratch memory and counts itself; the one that arrives last adds the parts, always in the same order, and writes the result. So
results are the same bits each time, and a row's do not depend on the rows beside it as long as the tiling is the same.

The matrix units of a Hopper chip that read their operands from shared memory want 64 rows on the left: the weight can give
them, the few rows cannot. So a tiling says which of the two stands there.
"""

import functools
from dataclasses import dataclass, replace
from typing import Any

import torch
import triton
import triton.language as tl

from sightline.ops.linear import FEW_ROWS, TWO_OPS, linear, linear_silu_mul
from sightline.ops.triton import runs_here
from sightline.ops.triton.early_start import let_the_next_start, starts_early
from sightline.ops.triton.few_rows_table import (
    COUNTERS,
    LINEAR,
    LINEAR_SILU_MUL,
    SCRATCH,
    Key,
    Tiling,
    fits_scratch,
    row_bucket,
)

_SMALL = 2**20  # numbers of a weight; those of larger ones are in the table or stay with the library


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
    place = weight + source * size + inner
    if EVEN:
        return tl.load(place, eviction_policy="evict_first")
    return tl.load(place, mask=inner < size, other=0.0, eviction_policy="evict_first")


@triton.jit
def _add_product(total, inputs, weights, WEIGHT_LEFT: tl.constexpr):
    if WEIGHT_LEFT:
        return tl.dot(weights, inputs, total)
    else:
        return tl.dot(inputs, weights, total)


@triton.jit
def _finish(total, bias, out, row, column, rows, width, HAS_BIAS: tl.constexpr):
    if HAS_BIAS:
        total += tl.load(bias + column, mask=column < width, other=0.0).to(tl.float32)[None, :]
    inside = (row[:, None] < rows) & (column[None, :] < width)
    tl.store(out + row[:, None] * width + column[None, :], total.to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["rows", "split"])
def _linear(
    x, weight, bias, out, parts, arrived, rows, width, size, split, HAS_BIAS: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr, INNER: tl.constexpr, EVEN: tl.constexpr, JOIN: tl.constexpr, WEIGHT_LEFT: tl.constexpr,
    EARLY: tl.constexpr,
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
        total = _add_product(total, inputs, _weights(weight, source, size, inner, EVEN, WEIGHT_LEFT), WEIGHT_LEFT)
    let_the_next_start(EARLY)
    if WEIGHT_LEFT:
        total = tl.trans(total)
    if JOIN:
        inside = (row[:, None] < rows) & (column[None, :] < width)
        place = parts + row[:, None] * width + column[None, :]
        tl.store(place + part * rows * width, total, mask=inside)
        tl.debug_barrier()  # the whole program has written before it is counted
        if tl.atomic_add(arrived + tile, 1, sem="acq_rel") == split - 1:
            joined = tl.zeros((ROWS, COLUMNS), tl.float32)
            for number in range(split):
                joined += tl.load(place + number * rows * width, mask=inside, other=0.0, cache_modifier=".cg")
            tl.store(arrived + tile, 0)
            _finish(joined, bias, out, row, column, rows, width, HAS_BIAS)
    else:
        _finish(total, bias, out, row, column, rows, width, HAS_BIAS)


@triton.jit(do_not_specialize=["rows"])
def _linear_silu_mul(
    x, weight, out, rows, width, size, ROWS: tl.constexpr, COLUMNS: tl.constexpr, INNER: tl.constexpr, EVEN: tl.constexpr,
    WEIGHT_LEFT: tl.constexpr, EARLY: tl.constexpr,
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
        gate = _add_product(gate, inputs, _weights(weight, source, size, inner, EVEN, WEIGHT_LEFT), WEIGHT_LEFT)
        up = _add_product(up, inputs, _weights(weight, source + width, size, inner, EVEN, WEIGHT_LEFT), WEIGHT_LEFT)
    let_the_next_start(EARLY)
    if WEIGHT_LEFT:
        gate, up = tl.trans(gate), tl.trans(up)
    kind = out.dtype.element_ty  # rounded where the separate ops round
    gate = gate.to(kind).to(tl.float32)
    silu = (gate / (1.0 + tl.exp(-gate))).to(kind).to(tl.float32)
    inside = (row[:, None] < rows) & (column[None, :] < width)
    product = silu * up.to(kind).to(tl.float32)
    tl.store(out + row[:, None] * width + column[None, :], product.to(kind), mask=inside)


@dataclass(frozen=True)
class _Scratch:
    parts: torch.Tensor  # float32
    arrived: torch.Tensor  # int32, zero between launches


@functools.cache
def _scratch(device: torch.device) -> _Scratch:
    """Kept as long as the process lives: recorded graphs have its addresses. One stream at a time may use it."""
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        raise RuntimeError("linear was not run on this device before it is recorded in a CUDA graph")
    made = _Scratch(
        torch.empty(SCRATCH, dtype=torch.float32, device=device), torch.zeros(COUNTERS, dtype=torch.int32, device=device)
    )
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()  # zeros for every stream
    return made


def run_linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, tiling: Tiling) -> torch.Tensor:
    """The product with a given tiling. x [rows, size], weight [width, size], bias [width] or None."""
    rows, size = x.shape
    width = weight.shape[0]
    assert fits_scratch(rows, width, tiling), f"{tiling} of {rows} x {width} needs more scratch memory than there is"
    out = x.new_empty(rows, width)
    scratch = _scratch(x.device)
    grid = (triton.cdiv(width, tiling.columns), tiling.split)
    _linear[grid](
        x, weight, out if bias is None else bias, out, scratch.parts, scratch.arrived, rows, width, size, tiling.split,
        bias is not None, row_bucket(rows), tiling.columns, tiling.inner, size % tiling.inner == 0, tiling.split > 1,
        **_launch(tiling, x.device),
    )  # fmt: skip
    return out


def run_linear_silu_mul(x: torch.Tensor, weight: torch.Tensor, tiling: Tiling) -> torch.Tensor:
    """The same for gate and up. x [rows, size], weight [2 * width, size] -> [rows, width]; sums are not shared."""
    rows, size = x.shape
    width = weight.shape[0] // 2
    assert tiling.split == 1, f"{tiling}: gate and up are not split"
    out = x.new_empty(rows, width)
    _linear_silu_mul[(triton.cdiv(width, tiling.columns),)](
        x, weight, out, rows, width, size, row_bucket(rows), tiling.columns, tiling.inner, size % tiling.inner == 0,
        **_launch(tiling, x.device),
    )  # fmt: skip
    return out


def _launch(tiling: Tiling, device: torch.device) -> dict[str, Any]:
    shape = {"num_warps": tiling.warps, "num_stages": tiling.stages, "WEIGHT_LEFT": tiling.weight_left}
    return {**shape, "EARLY": starts_early(device)}


def _tiling(table: dict[Key, Tiling], x: torch.Tensor, weight: torch.Tensor, width: int) -> Tiling | None:
    """What the table says, or something that works for small weights; None where the library is to be used."""
    if not (x.ndim == 2 and 0 < x.shape[0] <= FEW_ROWS and x.is_contiguous() and weight.is_contiguous()):
        return None
    if not (runs_here(x) and _multiplies(x) and x.numel() > 0 and width > 0):
        return None
    size = x.shape[1]
    if weight.numel() <= _SMALL:
        steps = -(-size // 64)
        return Tiling(32, 64, split=min(4, max(1, steps // 2)), warps=4, stages=4)
    return table.get((row_bucket(x.shape[0]), width, size)) if _is_hopper(x.device) else None


def _multiplies(x: torch.Tensor) -> bool:
    """Matrix units take 16-bit floats; float32 would be rounded there."""
    return x.dtype in (torch.bfloat16, torch.float16) if x.is_cuda else True


@functools.cache
def _is_hopper(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.get_device_capability(device)[0] == 9


def _takes(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> bool:
    return _tiling(LINEAR, x, weight, weight.shape[0]) is not None


@linear.twin("triton", when=_takes, recordable=True)
def linear_triton(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    tiling = _tiling(LINEAR, x, weight, weight.shape[0])
    assert tiling is not None
    return run_linear(x, weight, bias, tiling)


def _takes_gate_up(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> bool:
    return bias is None and _tiling(LINEAR_SILU_MUL, x, weight, weight.shape[0] // 2) is not None


@linear_silu_mul.twin("triton", when=_takes_gate_up, recordable=True, before=TWO_OPS)
def linear_silu_mul_triton(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    tiling = _tiling(LINEAR_SILU_MUL, x, weight, weight.shape[0] // 2)
    assert tiling is not None
    return run_linear_silu_mul(x, weight, replace(tiling, split=1))
