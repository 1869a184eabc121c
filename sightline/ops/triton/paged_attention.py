"""Decoding: one query per sequence over its pages, split along the keys so that few sequences fill the device, too.

The query heads that share a key/value head are the rows of one small matrix. A program takes a sequence, a key/value head and
a part of the keys, and keeps the running maximum, sum and weighted values (online softmax); a second kernel joins the parts.
(That the last program of a sequence joins them instead took longer: 12.2 µs against 9.6 for one sequence of 1,024 keys.)

    keys of a sequence   |  part 0  |  part 1  |  part 2  |      part = ceil(context / parts), in blocks
    partial results      m, l, acc    m, l, acc   m, l, acc  ──► joined

All sequences of a step are split into as many parts. Where one is much longer than the others there are more of them, so that
the step does not wait for the few programs that have the long one; graphs for such steps have a list of parts of one size
instead (ops/split_kv.py).
"""

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from sightline.ops.attention import TRITON, paged_attention
from sightline.ops.paged_cache import PagedCache
from sightline.ops.sequences import PagedSequences
from sightline.ops.split_kv import SplitKV
from sightline.ops.triton import next_power_of_2, runs_here
from sightline.ops.triton.dependent_launch import dependent_launch, wait_for_dependencies

KEYS = 64  # that a program takes at once; this and the following as measured on an H200
PROGRAMS = 512  # wanted at least: about four per multiprocessor
_MOST_PROGRAMS = 8 * PROGRAMS  # where contexts are uneven: most of them have nothing to do
FEW_PARTS = 16  # (warps, blocks read ahead) of a program up to so many parts, and with more, when there are few sequences
TUNED, TUNED_MANY_PARTS, TUNED_WIDE = (2, 4), (4, 2), (4, 3)  # the last for heads of 256
ROWS = 16  # of the smallest matrix product
MOST_PARTS = 64
_ITEMS_JOINED = 16  # parts at a time


@triton.jit
def part_of_keys(context, part, parts, KEYS: tl.constexpr):
    """The keys of one part: the first, and the one after the last if the context reaches so far."""
    size = tl.maximum(tl.cdiv(tl.cdiv(context, KEYS), parts), 1) * KEYS
    return part * size, part * size + size


@triton.jit
def attend_keys(
    queries, highest, total, values, first, last, k_cache, v_cache, k_scales, v_scales, pages, kv_head, scale,
    kv_heads: tl.constexpr, head_dim: tl.constexpr, page_size: tl.constexpr, KEYS: tl.constexpr, PRECISION: tl.constexpr,
    QUANTISED: tl.constexpr,
):  # fmt: skip
    """Goes on with an online softmax over keys [first, last): (highest, total, values) afterwards. pages: of the sequence.
    QUANTISED: keys and values are 8-bit floats, whose scales are multiplied into scores and weights."""
    dim = tl.arange(0, head_dim)
    for key in range(first, last, KEYS):
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
        scores = tl.where(known[None, :], scores, float("-inf"))
        higher = tl.maximum(highest, tl.max(scores, 1))
        shrink = tl.exp(highest - higher)
        weights = tl.exp(scores - higher[:, None])
        v = tl.load(v_cache + slot[:, None] * head_dim + dim[None, :], mask=known[:, None], other=0.0)
        total = total * shrink + tl.sum(weights, 1)
        if QUANTISED:
            v = v.to(queries.dtype)
            weights = weights * tl.load(v_scales + slot, mask=known, other=0.0)[None, :]
        values = values * shrink[:, None] + tl.dot(weights.to(v.dtype), v, input_precision=PRECISION)
        highest = higher
    return highest, total, values


@triton.jit
def write_part(
    highest, total, values, maxima, sums, partial, out, own, at, mine, head_dim: tl.constexpr, WHOLE: tl.constexpr
):  # fmt: skip
    """at [ROWS]: of these heads and this part in maxima and sums; own [ROWS, head_dim]: of the heads in out, if the part is
    all there is."""
    if WHOLE:
        tl.store(out + own, (values / total[:, None]).to(out.dtype.element_ty), mask=mine[:, None])
    else:
        tl.store(maxima + at, highest, mask=mine)
        tl.store(sums + at, total, mask=mine)
        target = partial + at.to(tl.int64)[:, None] * head_dim + tl.arange(0, head_dim)[None, :]
        tl.store(target, values, mask=mine[:, None])


@triton.jit(do_not_specialize=["max_pages", "parts"])
def _decode_part(
    q, k_cache, v_cache, k_scales, v_scales, page_table, query_starts, context_lengths, maxima, sums, partial, scale,
    max_pages, parts, heads: tl.constexpr, kv_heads: tl.constexpr, head_dim: tl.constexpr, page_size: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr, PRECISION: tl.constexpr, QUANTISED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Steps that are no graphs meet any number of parts, so it is no constant: none of them waits for a compiler."""
    wait_for_dependencies(PDL)
    sequence = tl.program_id(0)
    kv_head = tl.program_id(1)
    part = tl.program_id(2)
    group: tl.constexpr = heads // kv_heads
    start = tl.load(query_starts + sequence)
    if tl.load(query_starts + sequence + 1) - start == 1:
        context = tl.load(context_lengths + sequence)
        first, end = part_of_keys(context, part, parts, KEYS)
        if first < context:
            row = tl.arange(0, ROWS)
            head = kv_head * group + row
            mine = row < group
            own = (start.to(tl.int64) * heads + head)[:, None] * head_dim + tl.arange(0, head_dim)[None, :]
            queries = tl.load(q + own, mask=mine[:, None], other=0.0)
            highest = tl.full([ROWS], float("-inf"), tl.float32)
            total = tl.zeros([ROWS], tl.float32)
            values = tl.zeros([ROWS, head_dim], tl.float32)
            highest, total, values = attend_keys(
                queries, highest, total, values, first, tl.minimum(end, context), k_cache, v_cache, k_scales, v_scales,
                page_table + sequence * max_pages, kv_head, scale, kv_heads, head_dim, page_size, KEYS, PRECISION, QUANTISED,
            )  # fmt: skip
            at = (sequence * heads + head) * parts + part
            write_part(highest, total, values, maxima, sums, partial, q, own, at, mine, head_dim, False)


@triton.jit(do_not_specialize=["parts"])
def _join(
    maxima, sums, partial, query_starts, context_lengths, out, parts, heads: tl.constexpr, head_dim: tl.constexpr,
    MOST: tl.constexpr, KEYS: tl.constexpr, ALL_SINGLE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """At most MOST parts. ALL_SINGLE: every sequence has one query, so that its row need not be looked up."""
    sequence = tl.program_id(0)
    head = tl.program_id(1)
    context = tl.load(context_lengths + sequence)
    start, single = sequence, True
    if not ALL_SINGLE:
        start = tl.load(query_starts + sequence)
        single = tl.load(query_starts + sequence + 1) - start == 1
    wait_for_dependencies(PDL)
    if single:
        dim = tl.arange(0, head_dim)
        part = tl.arange(0, MOST)
        first, _ = part_of_keys(context, part, parts, KEYS)
        used = (first < context) & (part < parts)  # others have written nothing
        at = (sequence * heads + head) * parts + part
        own = tl.load(maxima + at, mask=used, other=float("-inf"))
        sums_of_parts = tl.load(sums + at, mask=used, other=0.0)
        pieces = tl.load(partial + at.to(tl.int64)[:, None] * head_dim + dim[None, :], mask=used[:, None], other=0.0)
        weight = tl.exp(own - tl.max(own, 0))
        joined = tl.sum(weight[:, None] * pieces, 0) / tl.sum(weight * sums_of_parts, 0)
        tl.store(out + (start.to(tl.int64) * heads + head) * head_dim + dim, joined.to(out.dtype.element_ty))


@triton.jit
def _join_items(
    maxima, sums, partial, first_item, out, heads: tl.constexpr, head_dim: tl.constexpr, ITEMS: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """One query of each sequence; ITEMS parts of it at a time."""
    sequence = tl.program_id(0)
    head = tl.program_id(1)
    first = tl.load(first_item + sequence)
    last = tl.load(first_item + sequence + 1)
    wait_for_dependencies(PDL)
    dim = tl.arange(0, head_dim)
    highest = tl.full([1], float("-inf"), tl.float32)
    total = tl.zeros([1], tl.float32)
    values = tl.zeros([head_dim], tl.float32)
    for start in range(first, last, ITEMS):
        item = start + tl.arange(0, ITEMS)
        used = item < last
        at = item * heads + head
        own = tl.load(maxima + at, mask=used, other=float("-inf"))
        sums_of_parts = tl.load(sums + at, mask=used, other=0.0)
        pieces = tl.load(partial + at.to(tl.int64)[:, None] * head_dim + dim[None, :], mask=used[:, None], other=0.0)
        higher = tl.maximum(highest, tl.max(own, 0))
        shrink = tl.exp(highest - higher)
        weight = tl.exp(own - higher)
        values = values * shrink + tl.sum(weight[:, None] * pieces, 0)
        total = total * shrink + tl.sum(weight * sums_of_parts, 0)
        highest = higher
    tl.store(out + (sequence.to(tl.int64) * heads + head) * head_dim + dim, (values / total).to(out.dtype.element_ty))


def _takes(q: torch.Tensor, cache: PagedCache, *_: object, **__: object) -> bool:
    size, group = q.shape[2], q.shape[1] // cache.keys.shape[2]
    return runs_here(q) and size in (64, 128, 256) and group <= ROWS and q.is_contiguous()


def _takes_decoding(q: torch.Tensor, cache: PagedCache, sequences: PagedSequences) -> bool:
    return len(sequences.query_lengths_host) == q.shape[0] and sequences.one_query_each and _takes(q, cache)


# Contexts come from the device; those of the host only decide into how many parts the keys are split.
@paged_attention.kernel("triton decode", when=_takes_decoding, graph_safe=True, backend=TRITON)
def decode_triton(q: torch.Tensor, cache: PagedCache, sequences: PagedSequences) -> torch.Tensor:
    """One query of each sequence."""
    out = torch.empty_like(q)
    decode(out, q, cache, sequences, sequences.context_lengths_host, only=True)
    return out


def decode(
    out: torch.Tensor,
    q: torch.Tensor,
    cache: PagedCache,
    sequences: PagedSequences,
    contexts: tuple[int, ...],
    only: bool,
) -> None:
    """Fills the rows of sequences that have one query, whose contexts the host says to be `contexts`. `only`: all have."""
    _, heads, head_dim = q.shape
    page_size, kv_heads = cache.keys.shape[1:3]
    page_table, starts, lengths = sequences.page_table, sequences.query_starts, sequences.context_lengths
    assert page_table.is_contiguous() and cache.is_contiguous
    count, parts = len(lengths), parts_for(len(lengths) * kv_heads, contexts)
    (warps, stages), early = tuned(head_dim, 1), dependent_launch(count, q.device)
    scratch = _scratch((count, heads, parts), head_dim, q.device)
    _decode_part[(count, kv_heads, parts)](
        q, cache.keys, cache.values, *cache.scales_for_kernel, page_table, starts, lengths, *scratch, head_dim**-0.5,
        page_table.shape[1], parts, heads, kv_heads, head_dim, page_size, ROWS, KEYS, precision(q), cache.quantised,
        num_warps=warps, num_stages=stages, **early,
    )  # fmt: skip
    _join[(count, heads)](*scratch, starts, lengths, out, parts, heads, head_dim, MOST_PARTS, KEYS, only, **early)


Scratch = tuple[torch.Tensor, torch.Tensor, torch.Tensor]  # maxima, sums, partial


@dataclass(frozen=True)
class Split:
    """Keys in parts: memory for what comes of each, and how the kernel that takes one is launched."""

    parts: int
    scratch: Scratch
    launch: dict[str, Any]


def split_keys(
    sequences: int, heads: int, kv_heads: int, head_dim: int, contexts: tuple[int, ...], device: torch.device
) -> Split:
    """Whoever is split into one part joins nothing and needs no memory for it."""
    parts = parts_for(sequences * kv_heads, contexts)
    warps, stages = tuned(head_dim, parts)
    scratch = _scratch((sequences if parts > 1 else 0, heads, parts), head_dim, device)
    return Split(parts, scratch, {"num_warps": warps, "num_stages": stages, **dependent_launch(sequences, device)})


def tuned(head_dim: int, parts: int) -> tuple[int, int]:
    """(warps, blocks read ahead)"""
    if parts > FEW_PARTS:
        return TUNED_MANY_PARTS
    return TUNED_WIDE if head_dim > 128 else TUNED


def split_items(items: int, heads: int, head_dim: int, device: torch.device) -> Split:
    """For keys that a list shares out."""
    warps, stages = tuned(head_dim, 1)
    return Split(
        items,
        _scratch((items, heads), head_dim, device),
        {"num_warps": warps, "num_stages": stages, **dependent_launch(items, device)},
    )


def _scratch(shape: tuple[int, ...], head_dim: int, device: torch.device) -> Scratch:
    maxima = torch.empty(shape, dtype=torch.float32, device=device)
    return maxima, torch.empty_like(maxima), maxima.new_empty(*shape, head_dim)


def join_items(split: Split, items: SplitKV, out: torch.Tensor) -> None:
    sequences, heads, head_dim = out.shape
    _join_items[(sequences, heads)](
        *split.scratch, items.first, out, heads, head_dim, _ITEMS_JOINED, **dependent_launch(sequences, out.device)
    )


def join_keys(split: Split, sequences: PagedSequences, out: torch.Tensor) -> None:
    """Each sequence has one query."""
    if split.parts > 1:
        count, heads, head_dim = out.shape
        _join[(count, heads)](
            *split.scratch, sequences.query_starts, sequences.context_lengths, out, split.parts, heads, head_dim, split.parts,
            KEYS, True, **dependent_launch(count, out.device),
        )  # fmt: skip


def precision(x: torch.Tensor) -> str:
    return "ieee" if x.dtype == torch.float32 else "tf32"


def parts_for(programs: int, contexts: tuple[int, ...]) -> int:
    """Into how many parts keys are split, where there are `programs` without: a power of two, for each is a kernel of its own.

    So many that the device is full, more by as much as the longest context is longer than they are on average, but none shorter
    than a few blocks.
    """
    longest = max(contexts)
    enough = -(-PROGRAMS // programs)
    uneven = min(-(-enough * longest * len(contexts) // max(1, sum(contexts))), _MOST_PROGRAMS // programs)
    return next_power_of_2(max(1, min(max(enough, uneven), -(-longest // (2 * KEYS)), MOST_PARTS)))
