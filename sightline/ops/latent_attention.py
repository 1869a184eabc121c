"""Attention whose keys and values are linear maps of one vector per token, the latent (MLA), over pages of latents.

    key of head h      keys[h] latent │ rotated part, one for all heads
    value of head h    values[h] latent

There are two ways to the same result. *Expanded*: keys and values are made of the latents, and attended to as usual; that costs
a product per token of the context, shared by all queries. *Absorbed*: the maps are applied to the query and to what it has
gathered, q keys[h] and values[h] (sum of latents), so that latents are attended to as they lie in memory, by all heads alike.
A few queries are absorbed, many expand.
"""

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F

from sightline.ops.dispatch import EXACT, ExampleMaker, Tolerance, op
from sightline.ops.latent_cache import LatentCache, quantised_latents
from sightline.ops.sequences import PagedSequences


def _store_examples(make: ExampleMaker) -> Iterator[dict[str, Any]]:
    for rank, rope_dim, page_size in ((48, 16, 4), (512, 64, 16)):
        cache = LatentCache(make.normal(4, page_size, rank + rope_dim), rank)
        both = make.normal(7, rank + 2 * rope_dim)
        example = {
            "latents": both[:, :rank],
            "rotated": both[:, rank : rank + rope_dim],
            "cache": cache,
            "slots": make.permutation(4 * page_size)[:7],
        }
        yield example
        yield {**example, "cache": quantised_latents(cache)}


@op(examples=_store_examples, tolerances={torch.float32: EXACT, torch.bfloat16: EXACT})
def store_latents(latents: torch.Tensor, rotated: torch.Tensor, cache: LatentCache, slots: torch.Tensor) -> None:
    """Writes what is kept of each token to its slot. Arguments as in LatentCache.store."""
    cache.store(latents, rotated, slots)


def _examples(make: ExampleMaker) -> Iterator[dict[str, Any]]:
    cases = (
        # heads, nope_dim, rope_dim, value_dim, rank, page_size, query lengths, context lengths (queries included)
        (2, 24, 16, 32, 48, 4, (3, 1, 6), (3, 9, 10)),
        (4, 32, 16, 16, 64, 16, (1, 1, 1), (1, 16, 33)),
        (16, 128, 64, 128, 512, 16, (1, 1), (20, 130)),
        (16, 128, 64, 128, 512, 16, (5,), (40,)),
        (3, 16, 32, 24, 128, 8, (1,) * 5, (1, 400, 64, 65, 17)),
        (4, 32, 16, 16, 64, 16, (1, 7, 1, 1, 2), (70, 7, 1, 40, 33)),  # decoding beside prompts
    )
    for heads, nope_dim, rope_dim, value_dim, rank, page_size, queries, contexts in cases:
        needed = [-(-context // page_size) for context in contexts]
        pages = make.permutation(sum(needed) + 2, dtype=torch.int32)
        table = torch.zeros(len(contexts), max(needed), dtype=torch.int32, device=make.device)
        first = 0
        for row, count in enumerate(needed):
            table[row, :count] = pages[first : first + count]
            first += count
        starts = [sum(queries[:count]) for count in range(len(queries) + 1)]
        cache = LatentCache(make.normal(len(pages), page_size, rank + rope_dim), rank)
        example = {
            "q": make.normal(starts[-1], heads, nope_dim + rope_dim),
            "keys": make.normal(heads, nope_dim, rank) * rank**-0.5,
            "values": make.normal(heads, value_dim, rank) * rank**-0.5,
            "cache": cache,
            "sequences": PagedSequences(table, make.tensor(starts), make.tensor(contexts), queries, contexts),
        }
        yield example
        yield {**example, "cache": quantised_latents(cache)}


@op(examples=_examples, tolerances={torch.float32: Tolerance(1e-5, 1e-4), torch.bfloat16: Tolerance(1.6e-2, 1.6e-2)})
def latent_attention(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, cache: LatentCache, sequences: PagedSequences
) -> torch.Tensor:
    """Causal attention of each sequence's new tokens over all its tokens. Returns [tokens, heads, value_dim].

    q [tokens, heads, nope_dim + rope_dim], its last numbers rotated; keys [heads, nope_dim, rank], values
    [heads, value_dim, rank]. Query i of n sees the first context - n + i + 1 tokens. Scores are scaled by the root of a query's
    size.
    """
    out = q.new_empty(*q.shape[:2], values.shape[1])
    attend_in_turn(out, q, keys, values, cache, sequences)
    return out


def attend_in_turn(
    out: torch.Tensor, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, cache: LatentCache,
    sequences: PagedSequences, least_queries: int = 1,
) -> None:  # fmt: skip
    """Fills `out` sequence by sequence, of those that have so many queries."""
    start = 0
    lengths = zip(sequences.query_lengths_host, sequences.context_lengths_host, strict=True)
    for row, (queries, context) in enumerate(lengths):
        part, start = q[start : start + queries], start + queries
        if queries < least_queries:
            continue
        pages = sequences.page_table[row, : -(-context // cache.page_size)].long()
        kept = cache.read(pages, q.dtype)[:context]
        attend = _absorbed if queries == 1 else _expanded
        out[start - queries : start] = attend(part, keys, values, kept)


def _absorbed(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
    """One query, which sees all that is kept. Its heads are like so many queries of one head."""
    scale, rank = q.shape[2] ** -0.5, keys.shape[2]
    queries = absorb(q, keys)
    found = F.scaled_dot_product_attention(queries[None], kept[None, None], kept[None, None, :, :rank], scale=scale)
    return give_back(found[0], values)


def absorb(q: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """Queries as they meet latents, [tokens, heads, rank + rope_dim]."""
    nope_dim = keys.shape[1]
    through = torch.bmm(q[..., :nope_dim].transpose(0, 1), keys).transpose(0, 1)
    return torch.cat((through, q[..., nope_dim:]), 2)


def give_back(gathered: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Weighted sums of latents [tokens, heads, rank] as those of values, [tokens, heads, value_dim]."""
    return torch.bmm(gathered.transpose(0, 1), values.transpose(1, 2)).transpose(0, 1)


def _expanded(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
    """The newest tokens of a sequence over all of it."""
    (heads, nope_dim, rank), context, queries = keys.shape, len(kept), len(q)
    latents, rotated = kept[:, :rank], kept[:, rank:]
    made = F.linear(latents, keys.flatten(0, 1)).unflatten(1, (heads, nope_dim)).transpose(0, 1)
    own_keys = torch.cat((made, rotated.expand(heads, -1, -1)), 2)
    own_values = F.linear(latents, values.flatten(0, 1)).unflatten(1, (heads, -1)).transpose(0, 1)
    mask = None
    if queries < context:
        mask = torch.ones(queries, context, dtype=torch.bool, device=q.device).tril(context - queries)
    heads_first = q.transpose(0, 1)[None]
    found = F.scaled_dot_product_attention(heads_first, own_keys[None], own_values[None], mask, is_causal=mask is None)
    return found[0].transpose(0, 1)
