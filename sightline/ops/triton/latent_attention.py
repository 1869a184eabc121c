"""Decoding over pages of latents: one query per sequence, absorbed, split along the keys as in paged_attention.py.

All heads of a query meet the same latents, so they are the rows of one product, and a latent is read once for scores and for
values. What parts bring is joined in pieces of a latent, for a whole one is four times as wide as a usual head.
"""

import numpy as np
import torch
import triton
import triton.language as tl

from sightline.ops.latent_attention import absorb, attend_in_turn, give_back, latent_attention
from sightline.ops.latent_cache import LatentCache
from sightline.ops.sequences import PagedSequences
from sightline.ops.transfer import send
from sightline.ops.triton import next_power_of_2, runs_here
from sightline.ops.triton.dependent_launch import dependent_launch, wait_for_dependencies
from sightline.ops.triton.paged_attention import KEYS, MOST_PARTS, ROWS, part_of_keys, parts_for, precision

_AT_ONCE = 32  # keys
_JOINED = 128  # numbers of a latent that a program joins


@triton.jit(do_not_specialize=["max_pages", "parts"])
def _decode_latents(
    q, latents, scales, page_table, context_lengths, maxima, sums, partial, scale, max_pages, parts, heads: tl.constexpr,
    RANK: tl.constexpr, TURNED: tl.constexpr, page_size: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
    AT_ONCE: tl.constexpr, PRECISION: tl.constexpr, QUANTISED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """ROWS heads of a sequence, and a part of its keys."""
    wait_for_dependencies(PDL)
    sequence = tl.program_id(0)
    part = tl.program_id(2)
    size: tl.constexpr = RANK + TURNED
    context = tl.load(context_lengths + sequence)
    first, end = part_of_keys(context, part, parts, KEYS)
    if first < context:
        head = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
        mine = head < heads
        own = q + (sequence.to(tl.int64) * heads + head)[:, None] * size
        dim, turned = tl.arange(0, RANK), tl.arange(0, TURNED)
        queries = tl.load(own + dim[None, :], mask=mine[:, None], other=0.0)
        turned_queries = tl.load(own + RANK + turned[None, :], mask=mine[:, None], other=0.0)
        highest = tl.full([ROWS], float("-inf"), tl.float32)
        total = tl.zeros([ROWS], tl.float32)
        values = tl.zeros([ROWS, RANK], tl.float32)
        last = tl.minimum(end, context)
        for key in range(first, last, AT_ONCE):
            token = key + tl.arange(0, AT_ONCE)
            known = token < last
            page = tl.load(page_table + sequence * max_pages + token // page_size, mask=known, other=0).to(tl.int64)
            slot = page * page_size + token % page_size
            latent = tl.load(latents + slot[:, None] * size + dim[None, :], mask=known[:, None], other=0.0)
            beside = tl.load(latents + slot[:, None] * size + RANK + turned[None, :], mask=known[:, None], other=0.0)
            if QUANTISED:
                latent, beside = latent.to(queries.dtype), beside.to(queries.dtype)
            scores = tl.dot(queries, tl.trans(latent), input_precision=PRECISION)
            more = tl.dot(turned_queries, tl.trans(beside), input_precision=PRECISION)
            if QUANTISED:
                of_latent = tl.load(scales + 2 * slot, mask=known, other=0.0)
                scores = scores * of_latent[None, :]
                more = more * tl.load(scales + 2 * slot + 1, mask=known, other=0.0)[None, :]
            scores = tl.where(known[None, :], (scores + more) * scale, float("-inf"))
            higher = tl.maximum(highest, tl.max(scores, 1))
            shrink = tl.exp(highest - higher)
            weights = tl.exp(scores - higher[:, None])
            total = total * shrink + tl.sum(weights, 1)
            if QUANTISED:
                weights = weights * of_latent[None, :]
            values = values * shrink[:, None] + tl.dot(weights.to(latent.dtype), latent, input_precision=PRECISION)
            highest = higher
        at = (sequence * heads + head) * parts + part
        tl.store(maxima + at, highest, mask=mine)
        tl.store(sums + at, total, mask=mine)
        tl.store(partial + at.to(tl.int64)[:, None] * RANK + dim[None, :], values, mask=mine[:, None])


@triton.jit(do_not_specialize=["parts"])
def _join_latents(
    maxima, sums, partial, context_lengths, out, parts, heads: tl.constexpr, RANK: tl.constexpr, MOST: tl.constexpr,
    KEYS: tl.constexpr, JOINED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """JOINED numbers of what one head gathers, of at most MOST parts."""
    sequence, head = tl.program_id(0), tl.program_id(1)
    context = tl.load(context_lengths + sequence)
    wait_for_dependencies(PDL)
    dim = tl.program_id(2) * JOINED + tl.arange(0, JOINED)
    part = tl.arange(0, MOST)
    first, _ = part_of_keys(context, part, parts, KEYS)
    used = (first < context) & (part < parts)  # others have written nothing
    at = (sequence * heads + head) * parts + part
    own = tl.load(maxima + at, mask=used, other=float("-inf"))
    sums_of_parts = tl.load(sums + at, mask=used, other=0.0)
    pieces = tl.load(partial + at.to(tl.int64)[:, None] * RANK + dim[None, :], mask=used[:, None], other=0.0)
    weight = tl.exp(own - tl.max(own, 0))
    joined = tl.sum(weight[:, None] * pieces, 0) / tl.sum(weight * sums_of_parts, 0)
    tl.store(out + (sequence.to(tl.int64) * heads + head) * RANK + dim, joined.to(out.dtype.element_ty))


def _takes_some(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, cache: LatentCache, sequences: PagedSequences
) -> bool:
    rank, turned = keys.shape[2], q.shape[2] - keys.shape[1]
    sizes = all(size >= 16 and size == next_power_of_2(size) for size in (rank, turned))
    contiguous = cache.latents.is_contiguous() and sequences.page_table.is_contiguous()
    return runs_here(q) and sizes and contiguous and 1 in sequences.query_lengths_host


def _takes(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, cache: LatentCache, sequences: PagedSequences) -> bool:
    single = len(sequences.query_lengths_host) == len(q) and sequences.one_query_each
    return single and _takes_some(q, keys, values, cache, sequences)


# Contexts come from the device; those of the host only decide into how many parts the keys are split.
@latent_attention.kernel("triton decode", when=_takes, graph_safe=True)
def latent_decode_triton(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, cache: LatentCache, sequences: PagedSequences
) -> torch.Tensor:
    (tokens, heads, query_dim), rank = q.shape, keys.shape[2]
    absorbed = absorb(q, keys)
    turned, page_size = absorbed.shape[2] - rank, cache.page_size
    blocks = triton.cdiv(heads, ROWS)
    parts = parts_for(tokens * blocks, sequences.context_lengths_host)
    maxima = torch.empty(tokens, heads, parts, dtype=torch.float32, device=q.device)
    scratch = maxima, torch.empty_like(maxima), maxima.new_empty(tokens, heads, parts, rank)
    gathered = q.new_empty(tokens, heads, rank)
    early = dependent_launch(tokens, q.device)
    scales = cache.latents if cache.scales is None else cache.scales
    _decode_latents[(tokens, blocks, parts)](
        absorbed, cache.latents, scales, sequences.page_table, sequences.context_lengths, *scratch, query_dim**-0.5,
        sequences.page_table.shape[1], parts, heads, rank, turned, page_size, ROWS, KEYS, _AT_ONCE, precision(q),
        cache.quantised, num_warps=8, num_stages=2, **early,
    )  # fmt: skip
    joined = min(rank, _JOINED)
    _join_latents[(tokens, heads, rank // joined)](
        *scratch, sequences.context_lengths, gathered, parts, heads, rank, MOST_PARTS, KEYS, joined, **early
    )
    return give_back(gathered, values)


@latent_attention.kernel("triton decode beside prompts", when=_takes_some)
def latent_decode_beside_prompts(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, cache: LatentCache, sequences: PagedSequences
) -> torch.Tensor:
    """Those that decode together, then prompts in turn."""
    lengths, contexts = np.array(sequences.query_lengths_host), np.array(sequences.context_lengths_host)
    rows = np.flatnonzero(lengths == 1)
    tokens = (lengths.cumsum() - lengths)[rows]
    index = send(np.stack((rows, tokens)), q.device)
    single = PagedSequences(
        sequences.page_table[index[0]],
        torch.arange(len(rows) + 1, dtype=torch.int32, device=q.device),
        sequences.context_lengths[index[0]],
        (1,) * len(rows),
        tuple(contexts[rows].tolist()),
    )
    out = q.new_empty(*q.shape[:2], values.shape[1])
    out[index[1]] = latent_decode_triton(q[index[1]], keys, values, cache, single)
    attend_in_turn(out, q, keys, values, cache, sequences, least_queries=2)
    return out
