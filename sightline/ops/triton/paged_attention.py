"""Decoding: one query per sequence over its pages, split along the keys so that few sequences fill the device, too.

The query heads that share a key/value head are the rows of one small matrix. A program takes a sequence, a key/value head and
a part of the keys, and keeps the running maximum, sum and weighted values (online softmax); a second kernel joins the parts.
(That the last program of a sequence joins them instead took longer: 12.2 µs against 9.6 for one sequence of 1,024 keys.)

    keys of a sequence   |  part 0  |  part 1  |  part 2  |      part = ceil(context / parts), in blocks
    partial results      m, l, acc    m, l, acc   m, l, acc  ──► joined

All sequences of a step are split into as many parts. Where one is much longer than the others there are more of them, so that
the step does not wait for the few programs that have the long one.
"""

import torch
import triton
import triton.language as tl

from sightline.ops.attention import attend_chunks, paged_attention
from sightline.ops.triton import next_power_of_2, runs_here
from sightline.ops.triton.early_start import early_start, wait_for_inputs

MIXED = "triton decode and definition"
KEYS = 64  # that a program takes at once; this and the following as measured on an H200
PROGRAMS = 512  # wanted at least: about four per multiprocessor
_MOST_PROGRAMS = 8 * PROGRAMS  # where contexts are uneven: most of them have nothing to do
FEW_PARTS = 16  # (warps, blocks read ahead) of a program up to so many parts, and with more, when there are few sequences
TUNED, TUNED_MANY_PARTS = (2, 4), (4, 2)
_ROWS = 16  # rows of the smallest matrix product
_MOST_PARTS = 64


@triton.jit(do_not_specialize=["max_pages"])
def _decode_part(
    q, k_cache, v_cache, page_table, query_starts, context_lengths, maxima, sums, partial, out, scale, max_pages,
    heads: tl.constexpr, kv_heads: tl.constexpr, head_dim: tl.constexpr, page_size: tl.constexpr, PARTS: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr, PRECISION: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    wait_for_inputs(EARLY)
    sequence = tl.program_id(0)
    kv_head = tl.program_id(1)
    part = tl.program_id(2)
    group: tl.constexpr = heads // kv_heads
    start = tl.load(query_starts + sequence)
    if tl.load(query_starts + sequence + 1) - start == 1:
        context = tl.load(context_lengths + sequence)
        blocks = tl.maximum(tl.cdiv(tl.cdiv(context, KEYS), PARTS), 1)
        first = part * blocks * KEYS
        last = tl.minimum(first + blocks * KEYS, context)
        row = tl.arange(0, ROWS)
        place = tl.arange(0, head_dim)
        head = kv_head * group + row
        mine = (row < group)[:, None]
        own = (start.to(tl.int64) * heads + head)[:, None] * head_dim + place[None, :]  # of these heads, in q and in out
        queries = tl.load(q + own, mask=mine, other=0.0)
        highest = tl.full([ROWS], float("-inf"), tl.float32)
        total = tl.zeros([ROWS], tl.float32)
        values = tl.zeros([ROWS, head_dim], tl.float32)
        for key in range(first, last, KEYS):
            token = key + tl.arange(0, KEYS)
            known = token < last
            page = tl.load(page_table + sequence * max_pages + token // page_size, mask=known, other=0).to(tl.int64)
            slot = (page * page_size + token % page_size) * kv_heads + kv_head
            k = tl.load(k_cache + slot[None, :] * head_dim + place[:, None], mask=known[None, :], other=0.0)
            scores = tl.dot(queries, k, input_precision=PRECISION) * scale
            scores = tl.where(known[None, :], scores, float("-inf"))
            higher = tl.maximum(highest, tl.max(scores, 1))
            shrink = tl.exp(highest - higher)
            weights = tl.exp(scores - higher[:, None])
            v = tl.load(v_cache + slot[:, None] * head_dim + place[None, :], mask=known[:, None], other=0.0)
            values = values * shrink[:, None] + tl.dot(weights.to(v.dtype), v, input_precision=PRECISION)
            total = total * shrink + tl.sum(weights, 1)
            highest = higher
        if PARTS == 1:
            tl.store(out + own, (values / total[:, None]).to(out.dtype.element_ty), mask=mine)
        else:
            at = (sequence * heads + head) * PARTS
            tl.store(maxima + at + part, highest, mask=row < group)
            tl.store(sums + at + part, total, mask=row < group)
            parts_at = partial + (at.to(tl.int64)[:, None] * head_dim + place[None, :])
            tl.store(parts_at + part * head_dim, values, mask=mine)


@triton.jit
def _join(
    maxima, sums, partial, query_starts, out, heads: tl.constexpr, head_dim: tl.constexpr, PARTS: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    wait_for_inputs(EARLY)
    sequence = tl.program_id(0)
    head = tl.program_id(1)
    start = tl.load(query_starts + sequence)
    if tl.load(query_starts + sequence + 1) - start == 1:
        place = tl.arange(0, head_dim)
        at = (sequence * heads + head) * PARTS + tl.arange(0, PARTS)
        own = tl.load(maxima + at)
        weight = tl.exp(own - tl.max(own, 0))  # parts without keys have -inf and weigh nothing
        total = tl.sum(weight * tl.load(sums + at), 0)
        pieces = tl.load(partial + at.to(tl.int64)[:, None] * head_dim + place[None, :])
        joined = tl.sum(weight[:, None] * pieces, 0) / total
        tl.store(out + (start.to(tl.int64) * heads + head) * head_dim + place, joined.to(out.dtype.element_ty))


def _takes(q: torch.Tensor, k_cache: torch.Tensor, *_: object, **__: object) -> bool:
    size, group = q.shape[2], q.shape[1] // k_cache.shape[2]
    return runs_here(q) and size in (64, 128, 256) and group <= _ROWS and q.is_contiguous()


def _takes_decoding(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    page_table: torch.Tensor,
    query_starts: torch.Tensor,
    context_lengths: torch.Tensor,
    query_lengths_host: tuple[int, ...],
    context_lengths_host: tuple[int, ...],
) -> bool:
    return len(query_lengths_host) == q.shape[0] and _takes(q, k_cache)


# Contexts come from the device; those of the host only decide into how many parts the keys are split.
@paged_attention.twin("triton decode", when=_takes_decoding, recordable=True)
def decode_triton(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    page_table: torch.Tensor,
    query_starts: torch.Tensor,
    context_lengths: torch.Tensor,
    query_lengths_host: tuple[int, ...],
    context_lengths_host: tuple[int, ...],
) -> torch.Tensor:
    """One query of each sequence."""
    out = torch.empty_like(q)
    _decode(out, q, k_cache, v_cache, page_table, query_starts, context_lengths, context_lengths_host)
    return out


@paged_attention.twin(MIXED, when=_takes)
def paged_attention_triton(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    page_table: torch.Tensor,
    query_starts: torch.Tensor,
    context_lengths: torch.Tensor,
    query_lengths_host: tuple[int, ...],
    context_lengths_host: tuple[int, ...],
) -> torch.Tensor:
    """Sequences with one query by the kernel, all others by the definition."""
    out = torch.empty_like(q)
    decoding = tuple(context for count, context in zip(query_lengths_host, context_lengths_host, strict=True) if count == 1)
    if decoding:
        _decode(out, q, k_cache, v_cache, page_table, query_starts, context_lengths, decoding)
    if len(decoding) < len(query_lengths_host):
        attend_chunks(out, q, k_cache, v_cache, page_table, query_lengths_host, context_lengths_host, skip_single=True)
    return out


def _decode(
    out: torch.Tensor,
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    page_table: torch.Tensor,
    query_starts: torch.Tensor,
    context_lengths: torch.Tensor,
    contexts: tuple[int, ...],
) -> None:
    """Fills the rows of sequences that have one query, whose contexts the host says to be `contexts`."""
    _, heads, head_dim = q.shape
    page_size, kv_heads = k_cache.shape[1:3]
    sequences = context_lengths.shape[0]
    assert page_table.is_contiguous() and k_cache.is_contiguous() and v_cache.is_contiguous()
    parts = parts_for(sequences * kv_heads, contexts)
    early = early_start(sequences, q.device)
    warps, stages = TUNED if parts <= FEW_PARTS else TUNED_MANY_PARTS
    split = sequences if parts > 1 else 0
    maxima = torch.empty(split, heads, parts, dtype=torch.float32, device=q.device)
    sums, partial = torch.empty_like(maxima), maxima.new_empty(split, heads, parts, head_dim)
    _decode_part[(sequences, kv_heads, parts)](
        q, k_cache, v_cache, page_table, query_starts, context_lengths, maxima, sums, partial, out, head_dim**-0.5,
        page_table.shape[1], heads, kv_heads, head_dim, page_size, parts, _ROWS, KEYS,
        "ieee" if q.dtype == torch.float32 else "tf32", num_warps=warps, num_stages=stages, **early,
    )  # fmt: skip
    if parts > 1:
        _join[(sequences, heads)](maxima, sums, partial, query_starts, out, heads, head_dim, parts, **early)


def parts_for(programs: int, contexts: tuple[int, ...]) -> int:
    """Into how many parts keys are split, where there are `programs` without: a power of two, for each is a kernel of its own.

    So many that the device is full, more by as much as the longest context is longer than they are on average, but none shorter
    than a few blocks.
    """
    longest = max(contexts)
    enough = -(-PROGRAMS // programs)
    uneven = min(-(-enough * longest * len(contexts) // max(1, sum(contexts))), _MOST_PROGRAMS // programs)
    return next_power_of_2(max(1, min(max(enough, uneven), -(-longest // (2 * KEYS)), _MOST_PARTS)))
