"""Rotary positions: one table of cosines and sines per model, indexed by position; arithmetic in float32.

Vision: a patch at (row, col) is rotated by row * f for the first half of the frequencies and by col * f for the second half,
with the same 1-D table for both axes. Text: each frequency belongs to one of three axes (time, height, width) and is rotated
by that axis's position. For plain text the three positions are equal and this is ordinary rotary embedding.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from sightline.errors import ConfigError
from sightline.ops.dispatch import ExampleMaker, Tolerance, op
from sightline.ops.linear import TWO_OPS, linear

_TOLERANCES = {torch.float32: Tolerance(2e-6, 1e-5), torch.bfloat16: Tolerance(1.6e-2, 1.6e-2)}


@dataclass(frozen=True)
class RotaryTable:
    """cos and sin of position * frequency, float32, [positions, frequencies] each."""

    cos: torch.Tensor
    sin: torch.Tensor

    @property
    def positions(self) -> int:
        return self.cos.shape[0]


def make_rotary_table(
    positions: int,
    rotary_dim: int,
    theta: float,
    device: torch.device,
    factors: Sequence[float] | None = None,
    scale: float = 1.0,
) -> RotaryTable:
    """Frequencies are theta^(-2i / rotary_dim), i < rotary_dim / 2. For a vision head pass half its size as rotary_dim.

    `factors`: each frequency is divided by its own. `scale`: of cosines and sines.
    """
    # On the CPU, whatever the device: last bits of powers and cosines differ between devices, and late positions magnify them.
    angles = torch.arange(positions, dtype=torch.float32)[:, None] * _frequencies(rotary_dim, theta, factors)
    return RotaryTable((angles.cos() * scale).to(device), (angles.sin() * scale).to(device))


def _frequencies(rotary_dim: int, theta: float, factors: Sequence[float] | None = None) -> torch.Tensor:
    exponents = torch.arange(0, rotary_dim, 2, dtype=torch.float32) / rotary_dim
    lengths = theta**exponents
    return 1.0 / (lengths if factors is None else torch.tensor(factors, dtype=torch.float32) * lengths)


Pairing = Literal["halves", "adjacent"]


@dataclass(frozen=True)
class PatchRotary:
    """How a tower rotates its queries and keys."""

    table: RotaryTable  # head_dim / 4 frequencies: half of a head's pairs takes them by row, the other half by column
    pairing: Pairing  # (i, i + padded_head_dim / 2), as checkpoints have it, or (2i, 2i + 1)
    # Where pairs are adjacent, [1, 3 * heads * padded_head_dim] float32: how much of a full turn one row of patches (even
    # columns of the projection) and one column of patches (odd ones) make; 0 for v and for what pads heads.
    turns: torch.Tensor | None


def make_patch_rotary(
    positions: int,
    head_dim: int,
    theta: float,
    device: torch.device,
    pairing: Pairing = "halves",
    heads: int = 1,
    padded_head_dim: int | None = None,
) -> PatchRotary:
    """For grids of up to `positions` rows and columns; heads of `head_dim` numbers lie in `places`, by default as many."""
    if head_dim % 4:
        raise ConfigError(
            f"The tower has heads of {head_dim} numbers, but must have a multiple of 4: one half of a head's pairs is turned "
            "by the row, the other by the column."
        )
    table = make_rotary_table(positions, head_dim // 2, theta, device)
    if pairing == "halves":
        return PatchRotary(table, pairing, None)
    quarter = head_dim // 4
    turn = _frequencies(head_dim // 2, theta).double() / (2 * math.pi)
    turns = torch.zeros(3, heads, (padded_head_dim or head_dim) // 2, 2, dtype=torch.float64)
    turns[:2, :, :quarter, 0] = turn
    turns[:2, :, quarter : 2 * quarter, 1] = turn
    return PatchRotary(table, pairing, turns.float().flatten()[None].to(device))


@dataclass(frozen=True)
class RotaryAngles:
    """By what each pair of a head's numbers is turned: cos and sin that are ready, or a table of them and where to look.

        ready     cos and sin [tokens, pairs]
        text      a table [positions, pairs], index [3, tokens], axes: which of time, height and width drives each pair
        vision    a table [positions, pairs / 2], index [2, tokens] of row and column, axes 0 … 0 1 … 1

    Pair i takes frequency i of the table, or i - pairs / 2 where there are half as many.
    """

    cos: torch.Tensor  # float32
    sin: torch.Tensor
    index: torch.Tensor | None = None  # [axes, tokens] int: positions
    axes: torch.Tensor | None = None  # [pairs] int64

    @property
    def pairs(self) -> int:
        return len(self.axes) if self.axes is not None else self.cos.shape[1]

    def ready(self) -> "RotaryAngles":
        if self.index is None or self.axes is None:
            return self
        which = torch.arange(len(self.axes), device=self.axes.device) % self.cos.shape[1]
        position = self.index[self.axes].T.long()  # [tokens, pairs]
        return RotaryAngles(self.cos[position, which], self.sin[position, which])


def _rotary_examples(make: ExampleMaker) -> Iterator[dict[str, Any]]:
    pairings: tuple[Pairing, ...] = ("halves", "adjacent")
    for size, pairing in itertools.product((6, 10, 66, 72, 80, 90, 96, 112), pairings):
        tokens, pairs, wider = 5, size // 2, 4 if size == 80 else 0
        if size % 4:
            third = pairs // 3
            axes = mrope_axes((pairs - 2 * third, third, third), "blocked", make.device)
            table = make_rotary_table(40, size, 1e4, make.device)
        else:
            axes = make.tensor([0, 1], torch.int64).repeat_interleave(pairs // 2)
            table = make_rotary_table(40, size // 2, 1e4, make.device)
        index = make.integers(0, 40, tokens, int(axes.max()) + 1).T
        looked_up = RotaryAngles(table.cos, table.sin, index, axes)
        packed = make.normal(tokens, 3 + 2, size + wider)  # what is behind the pairs passes through
        yield {"q": packed[:, :3], "k": packed[:, 3:], "angles": looked_up, "pairing": pairing}
        if size in (66, 80):
            more = make.normal(tokens, 7, size)
            yield {"q": more[:, :1], "k": more[:, 1:], "angles": looked_up.ready(), "pairing": pairing}


@op(examples=_rotary_examples, tolerances=_TOLERANCES)
def rotary(q: torch.Tensor, k: torch.Tensor, angles: RotaryAngles, pairing: Pairing) -> None:
    """Rotates the first 2 * pairs numbers of each head of q and k in place, in float32; the rest is left alone.

    q [tokens, heads, head_dim], k [tokens, kv_heads, head_dim], maybe strided views, of any even head size. Pairs are
    (i, i + pairs), or (2i, 2i + 1) where they are adjacent.
    """
    ready = angles.ready()
    cos, sin = ready.cos[:, None], ready.sin[:, None]
    for x in (q, k):
        whole = x[..., : 2 * angles.pairs]
        low, high = whole.chunk(2, -1) if pairing == "halves" else (whole[..., ::2], whole[..., 1::2])
        _turn(low, high, cos, sin)


def _turn(low: torch.Tensor, high: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
    turned = low.float() * cos - high.float() * sin, high.float() * cos + low.float() * sin
    low.copy_(turned[0])
    high.copy_(turned[1])


def _vision_examples(make: ExampleMaker) -> Iterator[dict[str, Any]]:
    cases = ((9, 2, 8, 8), (21, 4, 64, 64), (37, 16, 72, 72), (37, 16, 72, 80), (37, 16, 80, 80), (13, 12, 128, 128))
    pairings: tuple[Pairing, ...] = ("halves", "adjacent")
    for (tokens, heads, head_dim, padded_head_dim), pairing in itertools.product(cases, pairings):
        row_col = make.integers(0, 50, tokens, 2)
        example = {
            "qkv": make.normal(tokens, 3, heads, padded_head_dim),
            "row_col": row_col,
            "rotary": make_patch_rotary(50, head_dim, 1e4, make.device, pairing, heads, padded_head_dim),
        }
        yield example
    yield {**example, "row_col": row_col.T.contiguous().T}  # all rows, then all columns


@op(examples=_vision_examples, tolerances=_TOLERANCES)
def vision_rotary(qkv: torch.Tensor, row_col: torch.Tensor, rotary: PatchRotary) -> None:
    """Rotates q and k in place in a tower's packed projection; v is left alone.

    qkv [patches, 3, heads, padded_head_dim], row_col [patches, 2] int, for any head size divisible by 4. Where heads are
    padded, the rest is left alone: the end of each half, or of the head where pairs are adjacent.
    """
    table = rotary.table
    cos = table.cos[row_col].flatten(1)[:, None, None]  # [patches, 1, 1, head_dim / 2]: of the row, then of the column
    sin = table.sin[row_col].flatten(1)[:, None, None]
    if rotary.pairing == "halves":
        halves = qkv[:, :2].unflatten(-1, (2, -1))
        low, high = halves[..., 0, : cos.shape[-1]], halves[..., 1, : cos.shape[-1]]
    else:
        pairs = qkv[:, :2].unflatten(-1, (-1, 2))
        low, high = pairs[..., : cos.shape[-1], 0], pairs[..., : cos.shape[-1], 1]
    _turn(low, high, cos, sin)


def _projection_examples(make: ExampleMaker) -> Iterator[dict[str, Any]]:
    cases: tuple[tuple[int, int, int, int, Pairing], ...] = (
        # patches, heads, head_dim, places
        (12, 2, 8, 8, "halves"),
        (20, 2, 24, 32, "adjacent"),
        (1028, 4, 72, 80, "adjacent"),
        (4100, 2, 64, 64, "adjacent"),
        (1536, 8, 64, 64, "adjacent"),  # as many as columns
    )
    for patches, heads, head_dim, padded_head_dim, pairing in cases:
        size = 64
        weight = make.normal(3, heads, padded_head_dim, size) / 8
        weight[:, :, head_dim:] = 0
        for bias in (make.normal(3 * heads * padded_head_dim), None):
            yield {
                "x": make.normal(patches, size),
                "weight": weight.flatten(0, 2),
                "bias": bias,
                "row_col": make.integers(0, 200, 2, patches).T,
                "rotary": make_patch_rotary(200, head_dim, 1e4, make.device, pairing, heads, padded_head_dim),
                "heads": heads,
            }


@op(
    examples=_projection_examples,
    tolerances={torch.float32: Tolerance(2e-5, 1e-4), torch.bfloat16: Tolerance(4e-2, 3.2e-2)},
)
def rotated_projection(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    row_col: torch.Tensor,
    rotary: PatchRotary,
    heads: int,
) -> torch.Tensor:
    """A tower's packed projection, its queries and keys rotated. Returns [patches, 3, heads, padded_head_dim].

    x [patches, size], weight [3 * heads * padded_head_dim, size], bias [3 * heads * padded_head_dim] or None, row_col and
    rotary as in vision_rotary.
    """
    qkv: torch.Tensor = linear.definition(x, weight, bias).unflatten(1, (3, heads, -1))
    vision_rotary.definition(qkv, row_col, rotary)
    return qkv


@rotated_projection.kernel(TWO_OPS, when=lambda *_, **__: True, graph_safe=True)
def rotated_projection_in_two(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    row_col: torch.Tensor,
    rotary: PatchRotary,
    heads: int,
) -> torch.Tensor:
    """The product, then one pass over what is to be rotated."""
    qkv: torch.Tensor = linear(x, weight, bias).unflatten(1, (3, heads, -1))
    vision_rotary(qkv, row_col, rotary)
    return qkv


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


@dataclass(frozen=True)
class TextRotation:
    """By what tokens of the language model are rotated."""

    positions: torch.Tensor  # [3, tokens] int32: time, height, width
    table: RotaryTable
    axes: torch.Tensor  # [frequencies]: which of the three drives each frequency
    pairing: Pairing


def text_rotary(q: torch.Tensor, k: torch.Tensor, by: TextRotation) -> tuple[torch.Tensor, torch.Tensor]:
    """q and k rotated, as `rotary` does in place. q [tokens, heads, head_dim], k [tokens, kv_heads, head_dim]."""
    turned = q.clone(), k.clone()
    rotary.definition(*turned, RotaryAngles(by.table.cos, by.table.sin, by.positions, by.axes), by.pairing)
    return turned
