"""Rotary positions: one table of cosines and sines per model, indexed by position; arithmetic in float32.

Vision: a patch at (row, col) is rotated by row * f for the first half of the frequencies and by col * f for the second half,
with the same 1-D table for both axes. Text: each frequency belongs to one of three axes (time, height, width) and is rotated
by that axis's position. For plain text the three positions are equal and this is ordinary rotary embedding.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch

from sightline.ops.dispatch import ExampleMaker, Tolerance, op

_TOLERANCES = {torch.float32: Tolerance(2e-6, 1e-5), torch.bfloat16: Tolerance(1.6e-2, 1.6e-2)}


@dataclass(frozen=True)
class RotaryTable:
    """cos and sin of position * frequency, float32, [positions, frequencies] each."""

    cos: torch.Tensor
    sin: torch.Tensor

    @property
    def positions(self) -> int:
        return self.cos.shape[0]


def make_rotary_table(positions: int, rotary_dim: int, theta: float, device: torch.device) -> RotaryTable:
    """Frequencies are theta^(-2i / rotary_dim), i < rotary_dim / 2. For a vision head pass half its size as rotary_dim."""
    # On the CPU, whatever the device: last bits of powers and cosines differ between devices, and late positions magnify them.
    exponents = torch.arange(0, rotary_dim, 2, dtype=torch.float32) / rotary_dim
    angles = torch.arange(positions, dtype=torch.float32)[:, None] * (1.0 / theta**exponents)
    return RotaryTable(angles.cos().to(device), angles.sin().to(device))


def _rotate_halves(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotates dim i against dim i + size/2. x [tokens, heads, size], cos and sin [tokens, size / 2]."""
    low, high = x.float().chunk(2, dim=-1)
    cos, sin = cos[:, None, :], sin[:, None, :]
    return torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1).to(x.dtype)


def _rotate_adjacent(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotates dim 2i against dim 2i + 1. x [tokens, heads, size], cos and sin [tokens, size / 2]."""
    even, odd = x.float().unflatten(-1, (-1, 2)).unbind(-1)
    cos, sin = cos[:, None, :], sin[:, None, :]
    return torch.stack((even * cos - odd * sin, odd * cos + even * sin), dim=-1).flatten(-2).to(x.dtype)


def _vision_examples(make: ExampleMaker) -> Iterator[dict[str, Any]]:
    cases = ((9, 2, 8, 8), (21, 4, 64, 64), (37, 16, 72, 72), (37, 16, 72, 80), (37, 16, 80, 80), (13, 12, 128, 128))
    for tokens, heads, head_dim, places in cases:
        yield {
            "qkv": make.normal(tokens, 3, heads, places),
            "row_col": make.integers(0, 50, tokens, 2),
            "table": make_rotary_table(50, head_dim // 2, 1e4, make.device),
        }


@op(examples=_vision_examples, tolerances=_TOLERANCES)
def vision_rotary(qkv: torch.Tensor, row_col: torch.Tensor, table: RotaryTable) -> None:
    """Rotates q and k in place in a tower's packed projection; v is left alone.

    qkv [patches, 3, heads, places], row_col [patches, 2] int, table with head_dim / 4 frequencies for any head size divisible
    by 4. The halves of a head begin at 0 and at places / 2; where they are shorter than that, the rest of each is left alone.
    """
    cos = table.cos[row_col].flatten(1)[:, None, None]  # [patches, 1, 1, head_dim / 2]: of the row, then of the column
    sin = table.sin[row_col].flatten(1)[:, None, None]
    size, second = cos.shape[-1], qkv.shape[-1] // 2
    low, high = qkv[:, :2, :, :size], qkv[:, :2, :, second : second + size]
    turned = low.float() * cos - high.float() * sin, high.float() * cos + low.float() * sin
    low.copy_(turned[0])
    high.copy_(turned[1])


def mrope_axes(sections: tuple[int, int, int], layout: Literal["blocked", "interleaved"], device: torch.device) -> torch.Tensor:
    """Which axis (0 time, 1 height, 2 width) drives each frequency. [rotary_dim / 2] int64.

    blocked      t t t … h h h … w w w …
    interleaved  t h w t h w …, until height or width has its share; what is left belongs to time
    """
    count = sum(sections)
    axes = torch.zeros(count, dtype=torch.int64)
    if layout == "blocked":
        axes[sections[0] : sections[0] + sections[1]] = 1
        axes[sections[0] + sections[1] :] = 2
    else:
        axes[1 : 3 * sections[1] : 3] = 1
        axes[2 : 3 * sections[2] : 3] = 2
    return axes.to(device)


def text_rotary(
    q: torch.Tensor,
    k: torch.Tensor,
    positions: torch.Tensor,
    table: RotaryTable,
    axes: torch.Tensor,
    pairing: Literal["halves", "adjacent"],
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rotates the first 2 * frequencies numbers of each head of q and k; the rest passes through.

    q [tokens, heads, head_dim], k [tokens, kv_heads, head_dim], positions [3, tokens] int, axes [frequencies].
    """
    frequencies = axes.shape[0]
    which = torch.arange(frequencies, device=axes.device)
    row = positions[axes].T.long()  # [tokens, frequencies]: the position that drives each frequency
    cos, sin = table.cos[row, which], table.sin[row, which]
    rotate = _rotate_halves if pairing == "halves" else _rotate_adjacent
    split = 2 * frequencies
    rotated = [torch.cat((rotate(x[..., :split], cos, sin), x[..., split:]), dim=-1) for x in (q, k)]
    return rotated[0], rotated[1]
