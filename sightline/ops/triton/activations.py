"""silu(gate) * up in one pass."""

import torch
import triton
import triton.language as tl

from sightline.ops.activations import silu_mul
from sightline.ops.triton import runs_here
from sightline.ops.triton.early_start import early_start, wait_for_inputs

_BLOCK = 1024


@triton.jit
def _silu_mul(gate_up, out, size: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr):
    wait_for_inputs(EARLY)
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < size
    gate = tl.load(gate_up + row * 2 * size + column, mask=inside, other=0.0)
    up = tl.load(gate_up + row * 2 * size + size + column, mask=inside, other=0.0).to(tl.float32)
    wide = gate.to(tl.float32)
    silu = (wide / (1.0 + tl.exp(-wide))).to(gate.dtype).to(tl.float32)  # rounded in between, as the definition is
    tl.store(out + row * size + column, (silu * up).to(gate.dtype), mask=inside)


@silu_mul.twin(
    "triton", when=lambda gate_up: runs_here(gate_up) and gate_up.is_contiguous() and gate_up.numel() > 0, recordable=True
)
def silu_mul_triton(gate_up: torch.Tensor) -> torch.Tensor:
    size = gate_up.shape[-1] // 2
    out = gate_up.new_empty(*gate_up.shape[:-1], size)
    grid = (gate_up.numel() // (2 * size), triton.cdiv(size, _BLOCK))
    _silu_mul[grid](gate_up, out, size, _BLOCK, **early_start(grid[0], gate_up.device))
    return out
