"""Tokens without a sort. Rows are read by many programs at once; what they add up are integers, so their order does not matter.

Weights come from torch, as in the definition: an exponential that differs in its last bit would be another token one day.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from sightline.ops.sampling import DrawSettings, best_token, draw_by_id, relative_weights, unit_bits
from sightline.ops.triton import next_power_of_2, runs_here

PART_SIZE = 4096  # tokens a program reads


@triton.jit
def score_key(score):
    """An int32 that sorts as the score does: a negative float has its magnitude turned round. NaN is best, -0.0 is 0.0."""
    score = tl.where(score == score, score, float("inf"))
    score = tl.where(score == 0.0, 0.0, score)
    bits = score.to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


# ---- The best


@triton.jit
def _best_of_part(scores, best, row_stride, vocab, parts, PART: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    token = part * PART + tl.arange(0, PART)
    score = tl.load(scores + row * row_stride + token, mask=token < vocab, other=-float("inf")).to(tl.float32)
    # A token outside has the worst score, and of equal scores the lowest id wins: it is never chosen.
    packed = (score_key(score).to(tl.int64) << 32) | (0x7FFFFFFF - token).to(tl.int64)
    tl.store(best + row * parts + part, tl.max(packed, 0))


@triton.jit
def _best_of_parts(best, out, parts, PARTS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    part = tl.minimum(tl.arange(0, PARTS), parts - 1)
    packed = tl.max(tl.load(best + row * parts + part), 0)
    tl.store(out + row, 0x7FFFFFFF - (packed & 0x7FFFFFFF))


@best_token.kernel(
    "triton", when=lambda scores: runs_here(scores) and scores.numel() > 0 and scores.stride(1) == 1, graph_safe=True
)
def best_token_triton(scores: Tensor) -> Tensor:
    rows, vocab = scores.shape
    parts = triton.cdiv(vocab, PART_SIZE)
    best = torch.empty(rows, parts, dtype=torch.int64, device=scores.device)
    out = torch.empty(rows, dtype=torch.int64, device=scores.device)
    _best_of_part[(rows, parts)](scores, best, scores.stride(0), vocab, parts, PART_SIZE, num_warps=8)
    _best_of_parts[(rows,)](best, out, parts, next_power_of_2(parts), num_warps=1)
    return out


# ---- Drawing along the ids


@triton.jit
def _units_of(weights, min_p, row, token, vocab, scale, MIN_P: tl.constexpr):
    weight = tl.load(weights + row * vocab + token, mask=token < vocab, other=0.0)
    if MIN_P:
        weight = tl.where(weight >= tl.load(min_p + row), weight, 0.0)
    return (weight * scale).to(tl.int64)


@triton.jit
def _sum_part(weights, min_p, sums, vocab, parts, scale, MIN_P: tl.constexpr, PART: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    units = _units_of(weights, min_p, row, part * PART + tl.arange(0, PART), vocab, scale, MIN_P)
    tl.store(sums + row * parts + part, tl.sum(units, 0))


@triton.jit
def _draw_along_ids(
    weights, min_p, sums, uniform, out, vocab, parts, scale, MIN_P: tl.constexpr, PART: tl.constexpr, PARTS: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    index = tl.arange(0, PARTS)
    parts_units = tl.load(sums + row * parts + index, mask=index < parts, other=0)
    target = (tl.load(uniform + row) * tl.sum(parts_units, 0).to(tl.float64)).to(tl.int64)
    part = tl.minimum(tl.sum((tl.cumsum(parts_units, 0) <= target).to(tl.int32), 0), parts - 1)
    before = tl.sum(tl.where(index < part, parts_units, 0), 0)
    units = _units_of(weights, min_p, row, part * PART + tl.arange(0, PART), vocab, scale, MIN_P)
    within = tl.sum((before + tl.cumsum(units, 0) <= target).to(tl.int32), 0)
    tl.store(out + row, tl.minimum(part * PART + within, vocab - 1).to(tl.int64))


def takes(scores: Tensor, settings: DrawSettings) -> bool:
    return runs_here(scores) and scores.dtype == torch.float32 and scores.shape[0] > 0


def flat(column: Tensor | None, otherwise: Tensor) -> Tensor:
    """[g, 1] as g numbers one after another."""
    return otherwise if column is None else column.reshape(-1).contiguous()


@draw_by_id.kernel("triton", when=takes, graph_safe=True)
def draw_by_id_triton(scores: Tensor, settings: DrawSettings) -> Tensor:
    rows, vocab = scores.shape
    parts, scale, has_min_p = triton.cdiv(vocab, PART_SIZE), 2.0 ** unit_bits(vocab), settings.min_p is not None
    weights = relative_weights(scores, settings.temperature).contiguous()
    sums = torch.empty(rows, parts, dtype=torch.int64, device=scores.device)
    out = torch.empty(rows, dtype=torch.int64, device=scores.device)
    min_p, uniform = flat(settings.min_p, weights), flat(settings.uniform, weights)
    _sum_part[(rows, parts)](weights, min_p, sums, vocab, parts, scale, has_min_p, PART_SIZE, num_warps=8)
    _draw_along_ids[(rows,)](
        weights, min_p, sums, uniform, out, vocab, parts, scale, has_min_p, PART_SIZE, next_power_of_2(parts), num_warps=8
    )  # fmt: skip
    return out
