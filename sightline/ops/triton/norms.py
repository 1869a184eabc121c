"""Norms, alone and after adds, one program per row: read once, summed in float32, written once.

Blocks are powers of two, rows often are not: a row is held in two pieces, the largest power of two that fits and what is left
(1152 = 1024 + 128), so that hardly a lane idles. A program has so few warps that a thread has 16 to 40 numbers to load before
it waits for any: rows as short as a vision tower's take one warp, whose sums need no barrier.
"""

import torch
import triton
import triton.language as tl

from sightline.ops.norms import GateActivation, add_rms_norm, add_rms_norm_rows, gated_rms_norm, layer_norm, rms_norm
from sightline.ops.triton import next_power_of_2, runs_here
from sightline.ops.triton.dependent_launch import dependent_launch, wait_for_dependencies

_MOST = 16384  # numbers of a row that a program can hold


@triton.jit
def _read(
    x, residual, rows, shift, total, takes, column, inside, ADD: tl.constexpr, ROWS: tl.constexpr, SHIFT: tl.constexpr
):  # fmt: skip
    """What is to be normalised, in float32: a piece of one row. Pointers are to the row's start."""
    value = tl.load(x + column, mask=inside, other=0.0)
    if ADD:
        more = tl.load(residual + column, mask=inside, other=0.0)
        value = (value.to(tl.float32) + more.to(tl.float32)).to(value.dtype)
        if ROWS:
            row = tl.load(rows + column, mask=inside & takes, other=0.0)
            value = tl.where(takes, (value.to(tl.float32) + row.to(tl.float32)).to(value.dtype), value)
        tl.store(total + column, value, mask=inside)
    wide = value.to(tl.float32)
    if SHIFT:
        wide += tl.load(shift + column, mask=inside, other=0.0)
    return wide


@triton.jit
def _write(out, wide, scale, gain, offset, column, inside, CENTRE: tl.constexpr):
    if CENTRE:
        result = wide * scale * gain.to(tl.float32) + offset.to(tl.float32)
    elif gain.dtype != out.dtype.element_ty:  # a zero-centred norm's: rounded once
        result = wide * scale * gain
    else:
        rounded = (wide * scale).to(out.dtype.element_ty)  # in between, as the definition does
        result = rounded.to(tl.float32) * gain.to(tl.float32)
    tl.store(out + column, result.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _norm(
    x, residual, rows, index, shift, weight, bias, out, total, x_stride, rows_stride, eps, size: tl.constexpr,
    ADD: tl.constexpr, ROWS: tl.constexpr, SHIFT: tl.constexpr, CENTRE: tl.constexpr, MAIN: tl.constexpr, REST: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """CENTRE: layer norm (mean taken off, bias added); else RMS norm. ADD, ROWS: of a sum, which goes to `total`.

    Weights are read before the sums: with one row in a program they are as far away as the row is.
    """
    token = tl.program_id(0).to(tl.int64)
    x += token * x_stride
    residual += token * size
    total += token * size
    out += token * size
    takes = token >= 0  # a truth until ROWS tells another
    column = tl.arange(0, MAIN)
    inside = column < size
    gain = tl.load(weight + column, mask=inside, other=0.0)
    offset = tl.load(bias + column, mask=inside, other=0.0) if CENTRE else gain
    wait_for_dependencies(PDL)
    if ROWS:
        row = tl.load(index + token)
        takes = row >= 0
        rows += row * rows_stride
    main = _read(x, residual, rows, shift, total, takes, column, inside, ADD, ROWS, SHIFT)
    if REST > 0:
        column_rest = MAIN + tl.arange(0, REST)
        inside_rest = column_rest < size
        gain_rest = tl.load(weight + column_rest, mask=inside_rest, other=0.0)
        offset_rest = tl.load(bias + column_rest, mask=inside_rest, other=0.0) if CENTRE else gain_rest
        rest = _read(x, residual, rows, shift, total, takes, column_rest, inside_rest, ADD, ROWS, SHIFT)
    if CENTRE:
        mean = tl.sum(main, 0)
        if REST > 0:
            mean += tl.sum(rest, 0)
        mean /= size
        main -= mean
        if REST > 0:
            rest = tl.where(inside_rest, rest - mean, 0.0)
    squares = tl.sum(main * main, 0)
    if REST > 0:
        squares += tl.sum(rest * rest, 0)
    scale = tl.rsqrt(squares / size + eps)
    _write(out, main, scale, gain, offset, column, inside, CENTRE)
    if REST > 0:
        _write(out, rest, scale, gain_rest, offset_rest, column_rest, inside_rest, CENTRE)


def _warps(size: int) -> int:
    """By the row's length alone, so that a row's sum does not depend on how many rows there are."""
    for most, warps in ((1280, 1), (2048, 2), (3072, 4), (8192, 8)):
        if size <= most:
            return warps
    return 16


def _launch(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    eps: float,
    shift: torch.Tensor | None = None,
    rows: torch.Tensor | None = None,
    index: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    size = x.shape[-1]
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    total = torch.empty_like(out) if residual is not None else out
    main = next_power_of_2(size + 1) // 2
    rest = next_power_of_2(size - main) if size > main else 0
    assert shift is None or (shift.dtype == torch.float32 and shift.is_contiguous() and shift.shape == (size,))
    _norm[(x.numel() // size,)](
        x, x if residual is None else residual, x if rows is None else rows, x if index is None else index,
        weight if shift is None else shift, weight, weight if bias is None else bias, out, total,
        x.stride(-2) if x.ndim > 1 else size, 0 if rows is None else rows.stride(0), eps, size,
        residual is not None, rows is not None, shift is not None, bias is not None, main, rest, num_warps=_warps(size),
        **dependent_launch(x.numel() // size, x.device),
    )  # fmt: skip
    return out, total


def _rows(x: torch.Tensor) -> bool:
    """Whether rows lie at one distance from each other and each is contiguous."""
    return x.numel() > 0 and x.shape[-1] <= _MOST and x.stride(-1) == 1 and (x.ndim == 2 or x.is_contiguous()) and runs_here(x)


@rms_norm.kernel("triton", when=lambda x, weight, eps, shift=None: _rows(x), graph_safe=True)
def rms_norm_triton(x: torch.Tensor, weight: torch.Tensor, eps: float, shift: torch.Tensor | None = None) -> torch.Tensor:
    return _launch(x, None, weight, None, eps, shift)[0]


@add_rms_norm.kernel("triton", when=lambda x, residual, weight, eps: _rows(x) and residual.is_contiguous(), graph_safe=True)
def add_rms_norm_triton(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    return _launch(x, residual, weight, None, eps)


@add_rms_norm_rows.kernel(
    "triton",
    when=lambda x, residual, weight, eps, rows, index: (
        _rows(x) and residual.is_contiguous() and rows.stride(1) == 1 and rows.dtype == x.dtype
    ),
    graph_safe=True,
)
def add_rms_norm_rows_triton(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float, rows: torch.Tensor, index: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    assert index.is_contiguous() and index.dtype == torch.int64 and rows.shape[1] == x.shape[1]
    return _launch(x, residual, weight, None, eps, None, rows, index)


@layer_norm.kernel("triton", when=lambda x, weight, bias, eps, shift=None: _rows(x), graph_safe=True)
def layer_norm_triton(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float, shift: torch.Tensor | None = None
) -> torch.Tensor:
    return _launch(x, None, weight, bias, eps, shift)[0]


_HEADS = 8  # of a program


@triton.jit(do_not_specialize=["rows"])
def _gated_norm(
    x, gate, weight, out, rows, gate_stride, eps, heads: tl.constexpr, size: tl.constexpr, SIGMOID: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Rows are heads of tokens, one token after another."""
    column = tl.arange(0, BLOCK)
    gain = tl.load(weight + column, mask=column < size, other=0.0)
    wait_for_dependencies(PDL)
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    inside = (row < rows)[:, None] & (column < size)[None, :]
    offset = row[:, None] * size + column[None, :]
    wide = tl.load(x + offset, mask=inside, other=0.0).to(tl.float32)
    scaled = (wide * tl.rsqrt(tl.sum(wide * wide, 1) / size + eps)[:, None]).to(x.dtype.element_ty).to(tl.float32)
    source = gate + (row // heads)[:, None] * gate_stride + (row % heads)[:, None] * size + column[None, :]
    opening = tl.load(source, mask=inside, other=0.0).to(tl.float32)
    share = 1.0 / (1.0 + tl.exp(-opening))
    opening = share if SIGMOID else opening * share
    tl.store(out + offset, (gain[None, :] * scaled * opening).to(out.dtype.element_ty), mask=inside)


def _gate_rows(x: torch.Tensor, gate: torch.Tensor, weight: torch.Tensor, eps: float, activation: GateActivation) -> bool:
    return runs_here(x) and x.is_contiguous() and gate.stride(1) == 1 and x.numel() > 0


@gated_rms_norm.kernel("triton", when=_gate_rows, graph_safe=True)
def gated_rms_norm_triton(
    x: torch.Tensor, gate: torch.Tensor, weight: torch.Tensor, eps: float, activation: GateActivation
) -> torch.Tensor:
    tokens, heads, size = x.shape
    out = x.new_empty(tokens, heads * size)
    _gated_norm[(triton.cdiv(tokens * heads, _HEADS),)](
        x, gate, weight, out, tokens * heads, gate.stride(0), eps, heads, size, activation == "sigmoid", _HEADS,
        next_power_of_2(size), **dependent_launch(tokens, x.device),
    )  # fmt: skip
    return out
