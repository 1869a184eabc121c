"""Chunks of prompts over pages of keys and values: several queries of a sequence, each of which sees the keys up to its own.

The rows of a program's matrix are some queries in turn, with all the query heads that share a key/value head, so that each key
is read once for all of them:

    row   0 … group-1      group … 2*group-1    …
          query 0          query 1              …       of the program's block, head row % group

A program finds its sequence by counting the blocks of those before it, on the device: the grid depends on how many tokens and
sequences there are and not on how long each is. Sequences with one query go to the kernel that splits their keys.
"""

import torch
import triton
import triton.language as tl

from sightline.ops.attention import TRITON, paged_attention
from sightline.ops.paged_cache import PagedCache
from sightline.ops.sequences import PagedSequences
from sightline.ops.triton import next_power_of_2, runs_here
from sightline.ops.triton.paged_attention import decode, precision

CHUNKS = "triton chunks"
_ROWS, _ROWS_WIDE = 128, 64  # of a program; the second for heads of 256
_KEYS = 64  # at a time
_SEQUENCES = 64  # whose lengths are read at least: few numbers of them mean few kernels to compile


@triton.jit(do_not_specialize=["sequences", "max_pages"])
def _attend_chunks(
    q, k_cache, v_cache, k_scales, v_scales, page_table, query_starts, context_lengths, out, scale, sequences, max_pages,
    heads: tl.constexpr, kv_heads: tl.constexpr, head_dim: tl.constexpr, page_size: tl.constexpr, QUERIES: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr, SEQUENCES: tl.constexpr, PRECISION: tl.constexpr, QUANTISED: tl.constexpr,
    SKIP_SINGLE: tl.constexpr,
):  # fmt: skip
    kv_head = tl.program_id(1)
    group: tl.constexpr = heads // kv_heads
    every = tl.arange(0, SEQUENCES)
    there = every < sequences
    counts = tl.load(query_starts + every + 1, mask=there, other=0) - tl.load(query_starts + every, mask=there, other=0)
    if SKIP_SINGLE:
        counts = tl.where(counts == 1, 0, counts)
    blocks = tl.cdiv(counts, QUERIES)
    ends = tl.cumsum(blocks, 0)
    sequence = tl.sum((there & (ends <= tl.program_id(0))).to(tl.int32), 0)
    if sequence < sequences:
        before = tl.sum(tl.where(every < sequence, blocks, 0), 0)
        start = tl.load(query_starts + sequence)
        count = tl.load(query_starts + sequence + 1) - start
        context = tl.load(context_lengths + sequence)
        # The last block sees most keys and goes first, so that it does not hold up the end.
        own_blocks = tl.cdiv(count, QUERIES)
        first = (own_blocks - 1 - (tl.program_id(0) - before)) * QUERIES
        row = tl.arange(0, ROWS)
        query = first + row // group
        head = kv_head * group + row % group
        mine = (row < QUERIES * group) & (query < count)
        dim = tl.arange(0, head_dim)
        at = ((start + query).to(tl.int64) * heads + head)[:, None] * head_dim + dim[None, :]
        queries = tl.load(q + at, mask=mine[:, None], other=0.0)
        sees = context - count + query + 1  # keys
        last = tl.minimum(context, context - count + first + QUERIES)
        pages = page_table + sequence.to(tl.int64) * max_pages
        highest = tl.full([ROWS], float("-inf"), tl.float32)
        total = tl.zeros([ROWS], tl.float32)
        values = tl.zeros([ROWS, head_dim], tl.float32)
        for key in range(0, last, KEYS):
            token = key + tl.arange(0, KEYS)
            known = token < last
            page = tl.load(pages + token // page_size, mask=known, other=0).to(tl.int64)
            slot = (page * page_size + token % page_size) * kv_heads + kv_head
            k = tl.load(k_cache + slot[None, :] * head_dim + dim[:, None], mask=known[None, :], other=0.0)
            if QUANTISED:
                k = k.to(queries.dtype)
            scores = tl.dot(queries, k, input_precision=PRECISION) * scale
            if QUANTISED:
                scores = scores * tl.load(k_scales + slot, mask=known, other=0.0)[None, :]
            # The first key is seen by every row, so that no row's highest score stays at minus infinity.
            scores = tl.where(token[None, :] < sees[:, None], scores, float("-inf"))
            higher = tl.maximum(highest, tl.max(scores, 1))
            shrink = tl.exp(highest - higher)
            weights = tl.exp(scores - higher[:, None])
            total = total * shrink + tl.sum(weights, 1)
            v = tl.load(v_cache + slot[:, None] * head_dim + dim[None, :], mask=known[:, None], other=0.0)
            if QUANTISED:
                v = v.to(queries.dtype)
                weights = weights * tl.load(v_scales + slot, mask=known, other=0.0)[None, :]
            values = values * shrink[:, None] + tl.dot(weights.to(v.dtype), v, input_precision=PRECISION)
            highest = higher
        tl.store(out + at, (values / total[:, None]).to(out.dtype.element_ty), mask=mine[:, None])


def _takes(q: torch.Tensor, cache: PagedCache, sequences: PagedSequences) -> bool:
    size, group = q.shape[2], q.shape[1] // cache.keys.shape[2]
    fits = size in (64, 128, 256) and group <= 16
    return runs_here(q) and fits and q.is_contiguous() and cache.is_contiguous and len(q) > 0


# Lengths and pages come from the device. Where the host's say that no sequence has one query, which they do in a graph for one
# sequence alone, that is no matter: this kernel takes single queries as well, more slowly.
@paged_attention.kernel(CHUNKS, when=_takes, graph_safe=True, backend=TRITON)
def paged_attention_chunks(q: torch.Tensor, cache: PagedCache, sequences: PagedSequences) -> torch.Tensor:
    out = torch.empty_like(q)
    tokens, heads, head_dim = q.shape
    page_size, kv_heads = cache.keys.shape[1:3]
    lengths = zip(sequences.query_lengths_host, sequences.context_lengths_host, strict=True)
    decoding = tuple(context for queries, context in lengths if queries == 1)
    count = len(sequences.query_lengths_host)
    if decoding:
        decode(out, q, cache, sequences, decoding, only=len(decoding) == count)
    if len(decoding) == count:
        return out
    assert sequences.page_table.is_contiguous()
    rows = _ROWS if head_dim <= 128 else _ROWS_WIDE
    queries = rows // (heads // kv_heads)
    blocks = tokens // queries + count  # at most, however the tokens are shared out
    _attend_chunks[(blocks, kv_heads)](
        q, cache.keys, cache.values, *cache.scales_for_kernel, sequences.page_table, sequences.query_starts,
        sequences.context_lengths, out, head_dim**-0.5, count, sequences.page_table.shape[1], heads, kv_heads, head_dim,
        page_size, queries, rows, _KEYS, max(_SEQUENCES, next_power_of_2(count)), precision(q), cache.quantised, bool(decoding),
        num_warps=8 if rows == _ROWS else 4, num_stages=2,
    )  # fmt: skip
    return out
