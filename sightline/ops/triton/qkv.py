"""Norm, rotary and store in one pass over the projection: a program takes a token and some of its heads.

Each number of a head needs its partner in the rotation. Both are read from the projection, which is not written, so no program
waits for another.
"""

import torch
import triton
import triton.language as tl

from sightline.ops.fp8 import INVERSE as _INVERSE
from sightline.ops.fp8 import SMALLEST_MAXIMUM as _SMALLEST_MAXIMUM
from sightline.ops.paged_cache import PagedCache
from sightline.ops.qkv import HeadNorms, rotate_and_store
from sightline.ops.rotary import TextRotation
from sightline.ops.triton import next_power_of_2, runs_here
from sightline.ops.triton.dependent_launch import dependent_launch, wait_for_dependencies

WHOLE_HEADS, WHOLE_WARPS = 16, 2  # of a program; measured
_HEADS = 8
INVERSE, SMALLEST = tl.constexpr(_INVERSE), tl.constexpr(_SMALLEST_MAXIMUM)


@triton.jit
def quantised(x, kind: tl.constexpr):
    """Rows in 8-bit floats, and their scales, as quantise_rows makes them. x [rows, numbers]"""
    wide = x.to(tl.float32)
    scale = tl.maximum(tl.max(tl.abs(wide), 1), SMALLEST) * INVERSE
    return tl.div_rn(wide, tl.broadcast_to(scale[:, None], wide.shape)).to(kind), scale


@triton.jit
def normed(x, weight, sum_of_squares, eps, head_dim: tl.constexpr):
    """As the RMS norm's definition rounds: before the weight and after it, or with a float32 weight once."""
    scaled = x.to(tl.float32) * tl.rsqrt(sum_of_squares / head_dim + eps)[:, None]
    if weight.dtype == x.dtype:
        scaled = scaled.to(x.dtype).to(tl.float32)
    return (scaled * weight.to(tl.float32)).to(x.dtype)


@triton.jit
def partners(dim, frequencies: tl.constexpr, ADJACENT: tl.constexpr):
    """Of places of a head: whether they rotate, against which, by which frequency, whether as the first of their pair."""
    rotates = dim < 2 * frequencies
    if ADJACENT:
        partner = dim ^ 1
        frequency = dim // 2
        low = dim % 2 == 0
    else:
        low = dim < frequencies
        partner = tl.where(low, dim + frequencies, dim - frequencies)
        frequency = dim % frequencies
    return rotates, tl.where(rotates, partner, dim), frequency, low


@triton.jit(do_not_specialize=["tokens"])
def _rotate_and_store(
    qkv, q_weight, k_weight, eps, positions, cos_table, sin_table, axes, q_out, k_cache, v_cache, k_scales, v_scales,
    slots, tokens, heads: tl.constexpr, kv_heads: tl.constexpr, head_dim: tl.constexpr, frequencies: tl.constexpr,
    NORMS: tl.constexpr, ADJACENT: tl.constexpr, BLOCK_HEADS: tl.constexpr, BLOCK_DIM: tl.constexpr, QUANTISED: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * BLOCK_HEADS + tl.arange(0, BLOCK_HEADS)
    dim = tl.arange(0, BLOCK_DIM)
    in_head = dim < head_dim
    inside = (head < heads + 2 * kv_heads)[:, None] & in_head[None, :]
    rotates, partner, frequency, low = partners(dim, frequencies, ADJACENT)
    source = qkv + token * (heads + 2 * kv_heads) * head_dim + head[:, None] * head_dim
    x = tl.load(source + dim[None, :], mask=inside, other=0.0)
    other = tl.load(source + partner[None, :], mask=inside, other=0.0)
    is_q = head < heads
    is_k = (head >= heads) & (head < heads + kv_heads)
    is_v = (head >= heads + kv_heads) & (head < heads + 2 * kv_heads)
    plain = x
    if NORMS:
        wide = x.to(tl.float32)
        squares = tl.sum(wide * wide, 1)
        gain_q = tl.load(q_weight + dim, mask=in_head, other=0.0)
        gain_k = tl.load(k_weight + dim, mask=in_head, other=0.0)
        other_q = tl.load(q_weight + partner, mask=in_head, other=0.0)
        other_k = tl.load(k_weight + partner, mask=in_head, other=0.0)
        x = normed(x, tl.where(is_q[:, None], gain_q[None, :], gain_k[None, :]), squares, eps, head_dim)
        other = normed(other, tl.where(is_q[:, None], other_q[None, :], other_k[None, :]), squares, eps, head_dim)
    axis = tl.load(axes + frequency, mask=rotates, other=0)
    at = tl.load(positions + axis * tokens + token, mask=rotates, other=0).to(tl.int64)
    cos = tl.load(cos_table + at * frequencies + frequency, mask=rotates, other=1.0)
    sin = tl.load(sin_table + at * frequencies + frequency, mask=rotates, other=0.0)
    sin = tl.where(low, -sin, sin)
    turned = (x.to(tl.float32) * cos[None, :] + other.to(tl.float32) * sin[None, :]).to(x.dtype)
    tl.store(q_out + (token * heads + head)[:, None] * head_dim + dim[None, :], turned, mask=inside & is_q[:, None])
    slot = tl.load(slots + token)
    k_slot = slot * kv_heads + head - heads
    v_slot = k_slot - kv_heads
    if QUANTISED:
        turned, scale = quantised(turned, k_cache.dtype.element_ty)
        tl.store(k_scales + k_slot, scale, mask=is_k)
        plain, scale = quantised(plain, v_cache.dtype.element_ty)
        tl.store(v_scales + v_slot, scale, mask=is_v)
    tl.store(k_cache + k_slot[:, None] * head_dim + dim[None, :], turned, mask=inside & is_k[:, None])
    tl.store(v_cache + v_slot[:, None] * head_dim + dim[None, :], plain, mask=inside & is_v[:, None])


@triton.jit
def _halves_quantised(low, high, kind: tl.constexpr):
    """As `quantised`, of rows in two halves [rows, half]; scales [rows, 1]."""
    low, high = low.to(tl.float32), high.to(tl.float32)
    most = tl.maximum(tl.max(tl.abs(low), 1), tl.max(tl.abs(high), 1))
    scale = (tl.maximum(most, SMALLEST) * INVERSE)[:, None]
    wide = tl.broadcast_to(scale, low.shape)
    return tl.div_rn(low, wide).to(kind), tl.div_rn(high, wide).to(kind), scale


@triton.jit(do_not_specialize=["tokens"])
def _rotate_halves(
    qkv, q_weight, k_weight, eps, positions, cos_table, sin_table, axes, q_out, k_cache, v_cache, k_scales, v_scales,
    slots, tokens, heads: tl.constexpr, kv_heads: tl.constexpr, half: tl.constexpr, NORMS: tl.constexpr,
    BLOCK_HEADS: tl.constexpr, QUANTISED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Heads that are rotated whole, in pairs (i, i + half): each number is read once."""
    head_dim: tl.constexpr = 2 * half
    every: tl.constexpr = heads + 2 * kv_heads
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * BLOCK_HEADS + tl.arange(0, BLOCK_HEADS)
    dim = tl.arange(0, half)
    inside = (head < every)[:, None]
    wait_for_dependencies(PDL)
    source = qkv + (token * every + head)[:, None] * head_dim + dim[None, :]
    low = tl.load(source, mask=inside, other=0.0)
    high = tl.load(source + half, mask=inside, other=0.0)
    slot = tl.load(slots + token)
    at = tl.load(positions + tl.load(axes + dim) * tokens + token).to(tl.int64) * half + dim
    cos = tl.load(cos_table + at)[None, :]
    sin = tl.load(sin_table + at)[None, :]
    is_q = (head < heads)[:, None]
    is_k = ((head >= heads) & (head < heads + kv_heads))[:, None]
    is_v = (head >= heads + kv_heads)[:, None] & inside
    a, b = low, high
    if NORMS:
        wide_low, wide_high = low.to(tl.float32), high.to(tl.float32)
        squares = tl.sum(wide_low * wide_low + wide_high * wide_high, 1)
        gain_low = tl.where(is_q, tl.load(q_weight + dim)[None, :], tl.load(k_weight + dim)[None, :])
        gain_high = tl.where(is_q, tl.load(q_weight + half + dim)[None, :], tl.load(k_weight + half + dim)[None, :])
        a, b = normed(low, gain_low, squares, eps, head_dim), normed(high, gain_high, squares, eps, head_dim)
    a, b = a.to(tl.float32), b.to(tl.float32)
    turned_low, turned_high = (a * cos - b * sin).to(low.dtype), (b * cos + a * sin).to(low.dtype)
    q_target = q_out + (token * heads + head)[:, None] * head_dim + dim[None, :]
    tl.store(q_target, turned_low, mask=is_q)
    tl.store(q_target + half, turned_high, mask=is_q)
    k_slot = slot * kv_heads + head - heads
    v_slot = k_slot - kv_heads
    if QUANTISED:
        turned_low, turned_high, scale = _halves_quantised(turned_low, turned_high, k_cache.dtype.element_ty)
        tl.store(k_scales + k_slot[:, None], scale, mask=is_k)
        low, high, scale = _halves_quantised(low, high, v_cache.dtype.element_ty)
        tl.store(v_scales + v_slot[:, None], scale, mask=is_v)
    k_target = k_cache + k_slot[:, None] * head_dim + dim[None, :]
    tl.store(k_target, turned_low, mask=is_k)
    tl.store(k_target + half, turned_high, mask=is_k)
    v_target = v_cache + v_slot[:, None] * head_dim + dim[None, :]
    tl.store(v_target, low, mask=is_v)
    tl.store(v_target + half, high, mask=is_v)


def kernel_norms(norms: HeadNorms | None, qkv: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, float]:
    """q_weight, k_weight and eps; where there are none, something that is not read."""
    return (qkv, qkv, 0.0) if norms is None else (norms.q_weight, norms.k_weight, norms.eps)


def kernel_rotation(by: TextRotation, tokens: int) -> tuple[torch.Tensor, ...]:
    """positions, cos_table, sin_table and axes."""
    assert by.positions.is_contiguous() and by.positions.shape == (3, tokens)
    return by.positions, by.table.cos, by.table.sin, by.axes


def _takes(qkv: torch.Tensor, *_: object, **named: object) -> bool:
    return runs_here(qkv) and qkv.is_contiguous() and qkv.numel() > 0


@rotate_and_store.kernel("triton", when=_takes, graph_safe=True)
def rotate_and_store_triton(
    qkv: torch.Tensor,
    norms: HeadNorms | None,
    rotation: TextRotation,
    cache: PagedCache,
    slots: torch.Tensor,
) -> torch.Tensor:
    tokens, all_heads, head_dim = qkv.shape
    kv_heads = cache.keys.shape[2]
    heads = all_heads - 2 * kv_heads
    assert cache.is_contiguous
    gains, turns = kernel_norms(norms, qkv), kernel_rotation(rotation, tokens)
    out = qkv.new_empty(tokens, heads, head_dim)
    half = len(rotation.axes)
    if rotation.pairing == "halves" and 2 * half == head_dim and half == next_power_of_2(half):
        _rotate_halves[(tokens, triton.cdiv(all_heads, WHOLE_HEADS))](
            qkv, *gains, *turns, out, cache.keys, cache.values, *cache.scales_for_kernel, slots, tokens, heads, kv_heads, half,
            norms is not None, WHOLE_HEADS, cache.quantised, num_warps=WHOLE_WARPS, **dependent_launch(tokens, qkv.device),
        )  # fmt: skip
        return out
    grid = (tokens, triton.cdiv(all_heads, _HEADS))
    _rotate_and_store[grid](
        qkv, *gains, *turns, out, cache.keys, cache.values, *cache.scales_for_kernel, slots, tokens, heads, kv_heads, head_dim,
        half, norms is not None, rotation.pairing == "adjacent", _HEADS, next_power_of_2(head_dim), cache.quantised,
    )  # fmt: skip
    return out
