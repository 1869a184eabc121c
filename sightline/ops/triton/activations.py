"""silu(gate) * up, x * sigmoid(gate) and quick-GELU, each in one pass."""

import torch
import triton
import triton.language as tl

from sightline.ops.activations import quick_gelu, sigmoid_mul, silu_mul
from sightline.ops.triton import runs_here
from sightline.ops.triton.dependent_launch import dependent_launch, wait_for_dependencies

_BLOCK = 1024


@triton.jit
def _silu_mul(gate_up, out, size: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr):
    wait_for_dependencies(PDL)
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < size
    gate = tl.load(gate_up + row * 2 * size + column, mask=inside, other=0.0)
    up = tl.load(gate_up + row * 2 * size + size + column, mask=inside, other=0.0).to(tl.float32)
    wide = gate.to(tl.float32)
    silu = (wide / (1.0 + tl.exp(-wide))).to(gate.dtype).to(tl.float32)  # rounded in between, as the definition is
    tl.store(out + row * size + column, (silu * up).to(gate.dtype), mask=inside)


@silu_mul.kernel(
    "triton", when=lambda gate_up: runs_here(gate_up) and gate_up.is_contiguous() and gate_up.numel() > 0, graph_safe=True
)
def silu_mul_triton(gate_up: torch.Tensor) -> torch.Tensor:
    size = gate_up.shape[-1] // 2
    out = gate_up.new_empty(*gate_up.shape[:-1], size)
    grid = (gate_up.numel() // (2 * size), triton.cdiv(size, _BLOCK))
    _silu_mul[grid](gate_up, out, size, _BLOCK, **dependent_launch(grid[0], gate_up.device))
    return out


@triton.jit(do_not_specialize=["count"])
def _sigmoid_mul(x, gate, out, count, BLOCK: tl.constexpr, PDL: tl.constexpr):
    wait_for_dependencies(PDL)
    offset = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = offset < count
    value = tl.load(x + offset, mask=inside, other=0.0)
    wide = tl.load(gate + offset, mask=inside, other=0.0).to(tl.float32)
    share = (1.0 / (1.0 + tl.exp(-wide))).to(value.dtype).to(tl.float32)  # rounded in between, as the definition is
    tl.store(out + offset, (value.to(tl.float32) * share).to(value.dtype), mask=inside)


def _both_contiguous(x: torch.Tensor, gate: torch.Tensor) -> bool:
    return runs_here(x) and x.is_contiguous() and gate.is_contiguous() and x.numel() > 0


@sigmoid_mul.kernel("triton", when=_both_contiguous, graph_safe=True)
def sigmoid_mul_triton(x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    count = x.numel()
    _sigmoid_mul[(triton.cdiv(count, _BLOCK),)](x, gate, out, count, _BLOCK, **dependent_launch(x.shape[0], x.device))
    return out


@triton.jit(do_not_specialize=["count"])
def _quick_gelu(x, out, count, BLOCK: tl.constexpr, PDL: tl.constexpr):
    wait_for_dependencies(PDL)
    offset = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = offset < count
    value = tl.load(x + offset, mask=inside, other=0.0)
    scaled = (1.702 * value.to(tl.float32)).to(value.dtype).to(tl.float32)  # rounded in between, as the definition is
    share = (1.0 / (1.0 + tl.exp(-scaled))).to(value.dtype).to(tl.float32)
    tl.store(out + offset, (value.to(tl.float32) * share).to(value.dtype), mask=inside)


@quick_gelu.kernel("triton", when=lambda x: runs_here(x) and x.is_contiguous() and x.numel() > 0, graph_safe=True)
def quick_gelu_triton(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    count = x.numel()
    _quick_gelu[(triton.cdiv(count, _BLOCK),)](x, out, count, _BLOCK, **dependent_launch(x.shape[0], x.device))
    return out
