"""Decoding from the projection on, in one kernel (and one that joins the parts of the keys).

A program of paged_attention.py's kernel takes the queries of a key/value head as the projection gives them, and norms and
rotates them itself; the one whose part has the newest token does the same to its key, stores key and value, and begins its
softmax with them, for nobody else reads them in this step. A kernel less in each layer.
"""

import torch
import triton
import triton.language as tl

from sightline.ops.attention import TRITON
from sightline.ops.linear import TWO_OPS
from sightline.ops.new_tokens import attend_new_tokens
from sightline.ops.paged_cache import PagedCache
from sightline.ops.qkv import HeadNorms
from sightline.ops.rotary import TextRotation
from sightline.ops.sequences import PagedSequences
from sightline.ops.split_kv import SplitKV
from sightline.ops.triton import runs_here
from sightline.ops.triton.dependent_launch import wait_for_dependencies
from sightline.ops.triton.paged_attention import (
    KEYS,
    ROWS,
    attend_keys,
    join_items,
    join_keys,
    part_of_keys,
    precision,
    split_items,
    split_keys,
    write_part,
)
from sightline.ops.triton.qkv import kernel_norms, kernel_rotation, normed, partners, quantised


@triton.jit
def _turned(x, other, gain, other_gain, cos, sin, eps, NORMS: tl.constexpr, head_dim: tl.constexpr):
    """[rows, head_dim], normed and rotated. other: to each number the one that it is rotated against."""
    if NORMS:
        wide = x.to(tl.float32)
        squares = tl.sum(wide * wide, 1)
        x = normed(x, gain[None, :], squares, eps, head_dim)
        other = normed(other, other_gain[None, :], squares, eps, head_dim)
    return (x.to(tl.float32) * cos[None, :] + other.to(tl.float32) * sin[None, :]).to(x.dtype)


@triton.jit(do_not_specialize=["max_pages", "tokens"])
def _attend_new(
    qkv, q_weight, k_weight, eps, positions, cos_table, sin_table, axes, k_cache, v_cache, k_scales, v_scales, slots,
    page_table, context_lengths, item_sequence, item_part, item_size, maxima, sums, partial, out, scale, tokens, max_pages,
    heads: tl.constexpr, kv_heads: tl.constexpr, head_dim: tl.constexpr, frequencies: tl.constexpr, page_size: tl.constexpr,
    NORMS: tl.constexpr, ADJACENT: tl.constexpr, PARTS: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
    PRECISION: tl.constexpr, LISTED: tl.constexpr, QUANTISED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """LISTED: a program's sequence and part are in a list; else every sequence has PARTS parts."""
    kv_head = tl.program_id(1)
    group: tl.constexpr = heads // kv_heads
    # Lists, lengths and positions were on the device before the step began; of its kernels only the projection is waited for.
    if LISTED:
        listed = tl.load(item_sequence + tl.program_id(0))
        sequence = tl.maximum(listed, 0)
        part = tl.load(item_part + tl.program_id(0))
        size = tl.load(item_size)
        context = tl.where(listed < 0, 0, tl.load(context_lengths + sequence))
        first, end = part * size, part * size + size
    else:
        sequence = tl.program_id(0)
        part = tl.program_id(2)
        context = tl.load(context_lengths + sequence)
        first, end = part_of_keys(context, part, PARTS, KEYS)
    dim = tl.arange(0, head_dim)
    rotates, partner, frequency, low = partners(dim, frequencies, ADJACENT)
    axis = tl.load(axes + frequency, mask=rotates, other=0)
    time = tl.load(positions + sequence)
    height = tl.load(positions + tokens + sequence)
    width = tl.load(positions + 2 * tokens + sequence)
    angle = tl.where(axis == 0, time, tl.where(axis == 1, height, width)).to(tl.int64) * frequencies + frequency
    cos = tl.load(cos_table + angle, mask=rotates, other=1.0)
    sin = tl.load(sin_table + angle, mask=rotates, other=0.0)
    sin = tl.where(low, -sin, sin)
    wait_for_dependencies(PDL)
    if first < context:
        source = qkv + sequence.to(tl.int64) * (heads + 2 * kv_heads) * head_dim
        row = tl.arange(0, ROWS)
        head = kv_head * group + row
        mine = row < group
        x = tl.load(source + head[:, None] * head_dim + dim[None, :], mask=mine[:, None], other=0.0)
        other = tl.load(source + head[:, None] * head_dim + partner[None, :], mask=mine[:, None], other=0.0)
        gain, other_gain = cos, cos  # nothing, where there are no norms
        if NORMS:
            gain, other_gain = tl.load(q_weight + dim), tl.load(q_weight + partner)
        queries = _turned(x, other, gain, other_gain, cos, sin, eps, NORMS, head_dim)
        highest = tl.full([ROWS], float("-inf"), tl.float32)
        total = tl.zeros([ROWS], tl.float32)
        values = tl.zeros([ROWS, head_dim], tl.float32)
        last = tl.minimum(end, context - 1)
        if end >= context:  # the newest token is in this part
            key_at = source + (heads + kv_head) * head_dim
            value = tl.load(key_at + kv_heads * head_dim + dim)
            if NORMS:
                gain, other_gain = tl.load(k_weight + dim), tl.load(k_weight + partner)
            key, other_key = tl.load(key_at + dim)[None, :], tl.load(key_at + partner)[None, :]
            key = _turned(key, other_key, gain, other_gain, cos, sin, eps, NORMS, head_dim)
            head_slot = tl.load(slots + sequence) * kv_heads + kv_head
            slot = head_slot * head_dim + dim
            if QUANTISED:  # the newest token, too, is read as it is stored
                stored, key_scale = quantised(key, k_cache.dtype.element_ty)
                tl.store(k_cache + slot[None, :], stored)
                tl.store(k_scales + head_slot + tl.arange(0, 1), key_scale)
                key = (stored.to(tl.float32) * key_scale[:, None]).to(key.dtype)
                stored, value_scale = quantised(value[None, :], v_cache.dtype.element_ty)
                tl.store(v_cache + slot[None, :], stored)
                tl.store(v_scales + head_slot + tl.arange(0, 1), value_scale)
                value = tl.sum(stored.to(tl.float32) * value_scale[:, None], 0).to(value.dtype)
            else:
                tl.store(k_cache + slot[None, :], key)
                tl.store(v_cache + slot, value)
            highest = tl.sum(queries.to(tl.float32) * key.to(tl.float32), 1) * scale
            total += 1.0
            values += value.to(tl.float32)[None, :]
        highest, total, values = attend_keys(
            queries, highest, total, values, first, last, k_cache, v_cache, k_scales, v_scales,
            page_table + sequence * max_pages, kv_head, scale, kv_heads, head_dim, page_size, KEYS, PRECISION, QUANTISED,
        )  # fmt: skip
        own = (sequence.to(tl.int64) * heads + head)[:, None] * head_dim + dim[None, :]
        at = tl.program_id(0) * heads + head
        if not LISTED:
            at = at * PARTS + part
        write_part(highest, total, values, maxima, sums, partial, out, own, at, mine, head_dim, PARTS == 1 and not LISTED)


def _takes(
    qkv: torch.Tensor,
    norms: HeadNorms | None,
    rotation: TextRotation,
    cache: PagedCache,
    slots: torch.Tensor,
    sequences: PagedSequences,
    split_kv: SplitKV | None = None,
) -> bool:
    tokens, every, size = qkv.shape
    group = every // cache.keys.shape[2] - 2
    single = len(sequences.query_lengths_host) == tokens and sequences.one_query_each
    return runs_here(qkv) and single and size in (64, 128, 256) and group <= ROWS and qkv.is_contiguous()


@attend_new_tokens.kernel("triton", when=_takes, graph_safe=True, before=TWO_OPS, backend=TRITON)
def attend_new_tokens_triton(
    qkv: torch.Tensor,
    norms: HeadNorms | None,
    rotation: TextRotation,
    cache: PagedCache,
    slots: torch.Tensor,
    sequences: PagedSequences,
    split_kv: SplitKV | None = None,
) -> torch.Tensor:
    """One new token of each sequence."""
    count, every, head_dim = qkv.shape
    page_table, context_lengths = sequences.page_table, sequences.context_lengths
    page_size, kv_heads = cache.keys.shape[1:3]
    heads = every - 2 * kv_heads
    assert cache.is_contiguous and page_table.is_contiguous()
    out = qkv.new_empty(count, heads, head_dim)
    if split_kv is None:
        split = split_keys(count, heads, kv_heads, head_dim, sequences.context_lengths_host, qkv.device)
        grid, listed = (count, kv_heads, split.parts), (slots, slots, slots)
    else:
        split = split_items(len(split_kv.sequence), heads, head_dim, qkv.device)
        grid, listed = (split.parts, kv_heads, 1), (split_kv.sequence, split_kv.part, split_kv.size)
    _attend_new[grid](
        qkv, *kernel_norms(norms, qkv), *kernel_rotation(rotation, count), cache.keys, cache.values,
        *cache.scales_for_kernel, slots, page_table, context_lengths, *listed, *split.scratch, out, head_dim**-0.5, count,
        page_table.shape[1], heads, kv_heads, head_dim,
        len(rotation.axes), page_size, norms is not None, rotation.pairing == "adjacent",
        split.parts if split_kv is None else 1, ROWS, KEYS, precision(qkv), split_kv is not None, cache.quantised,
        **split.launch,
    )  # fmt: skip
    if split_kv is None:
        join_keys(split, sequences, out)
    else:
        join_items(split, split_kv, out)
    return out
