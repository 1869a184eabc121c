"""Norms, alone and after a residual add, one program per row: read once, summed in float32, written once."""

import torch
import triton
import triton.language as tl

from sightline.ops.norms import add_layer_norm, add_rms_norm, layer_norm, rms_norm
from sightline.ops.triton import next_power_of_2, runs_here

_MOST = 16384  # numbers of a row that a program can hold


@triton.jit
def _norm(
    x, residual, weight, bias, out, total, row_stride, eps,
    size: tl.constexpr, ADD: tl.constexpr, CENTRE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """CENTRE: layer norm (mean taken off, bias added); else RMS norm. ADD: of x + residual, which goes to `total`."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < size
    value = tl.load(x + row * row_stride + column, mask=inside, other=0.0)
    if ADD:
        value = (value.to(tl.float32) + tl.load(residual + row * size + column, mask=inside, other=0.0).to(tl.float32)).to(
            value.dtype
        )
        tl.store(total + row * size + column, value, mask=inside)
    wide = value.to(tl.float32)
    if CENTRE:
        wide = tl.where(inside, wide - tl.sum(wide, 0) / size, 0.0)
    scaled = wide * tl.rsqrt(tl.sum(wide * wide, 0) / size + eps)
    gain = tl.load(weight + column, mask=inside, other=0.0)
    if CENTRE:
        result = scaled * gain.to(tl.float32) + tl.load(bias + column, mask=inside, other=0.0).to(tl.float32)
    else:
        result = scaled.to(value.dtype).to(tl.float32) * gain.to(tl.float32)  # rounded in between, as the definition is
    tl.store(out + row * size + column, result.to(value.dtype), mask=inside)


def _launch(
    x: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor, bias: torch.Tensor | None, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    size = x.shape[-1]
    rows = x.numel() // size
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    total = torch.empty_like(out) if residual is not None else out
    block = next_power_of_2(size)
    row_stride = x.stride(-2) if x.ndim > 1 else size
    _norm[(rows,)](
        x, x if residual is None else residual, weight, weight if bias is None else bias, out, total, row_stride, eps,
        size, residual is not None, bias is not None, block, num_warps=min(8, max(1, block // 512)),
    )  # fmt: skip
    return out, total


def _rows(x: torch.Tensor) -> bool:
    """Whether rows lie at one distance from each other and each is contiguous."""
    return x.numel() > 0 and x.shape[-1] <= _MOST and x.stride(-1) == 1 and (x.ndim == 2 or x.is_contiguous()) and runs_here(x)


@rms_norm.twin("triton", when=lambda x, weight, eps: _rows(x))
def rms_norm_triton(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return _launch(x, None, weight, None, eps)[0]


@add_rms_norm.twin("triton", when=lambda x, residual, weight, eps: _rows(x) and residual.is_contiguous())
def add_rms_norm_triton(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    return _launch(x, residual, weight, None, eps)


@layer_norm.twin("triton", when=lambda x, weight, bias, eps: _rows(x))
def layer_norm_triton(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float) -> torch.Tensor:
    return _launch(x, None, weight, bias, eps)[0]


@add_layer_norm.twin("triton", when=lambda x, residual, weight, bias, eps: _rows(x) and residual.is_contiguous())
def add_layer_norm_triton(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    return _launch(x, residual, weight, bias, eps)
