"""Shapes at which ops over latents are timed: decoding over contexts of some lengths, and chunks of prompts."""

from collections.abc import Iterator
from functools import partial

import torch

from benchmarks.measure.kernel_case import Arguments, KernelCase, Maker, Setting
from sightline.config import EngineConfig
from sightline.ops.latent_cache import LatentCache
from sightline.ops.sequences import PagedSequences

_Shape = tuple[int, int, int, int, int]  # heads, nope_dim, rope_dim, value_dim, rank
_SMALL: _Shape = (16, 128, 64, 128, 512)  # of DeepSeek-VL2-small, for any model: few have latents
_TINY: _Shape = (2, 32, 16, 32, 64)


def _shape(at: Setting) -> _Shape:
    return _SMALL if at.spec.text.hidden_size >= 1024 else _TINY


def _cache(at: Setting, pages: int) -> LatentCache:
    *_, rope_dim, _, rank = _shape(at)
    return LatentCache(at.normal(pages, EngineConfig().page_size, rank + rope_dim), rank)


def _store_latents(at: Setting) -> Iterator[KernelCase]:
    *_, rope_dim, _, rank = _shape(at)

    def make(rows: int) -> Arguments:
        cache = _cache(at, -(-rows // EngineConfig().page_size))
        both = at.normal(rows, rank + rope_dim)
        slots = torch.randperm(rows, device=at.device)
        return {"latents": both[:, :rank], "rotated": both[:, rank:], "cache": cache, "slots": slots}

    for rows in at.sizes.rows:
        yield KernelCase(f"{rows}x{rank + rope_dim}", partial(make, rows), 2 * at.itemsize * rows * (rank + rope_dim))


def _latent_attention(at: Setting) -> Iterator[KernelCase]:
    for context in at.sizes.contexts:
        for sequences in at.sizes.decode_rows:
            yield _attention(at, 1, (context,) * sequences)
        for queries in at.sizes.prefill_rows:
            if queries <= context:
                yield _attention(at, queries, (context,))


def _attention(at: Setting, queries: int, contexts: tuple[int, ...]) -> KernelCase:
    heads, nope_dim, rope_dim, value_dim, rank = _shape(at)
    pages = [-(-context // EngineConfig().page_size) for context in contexts]
    tokens, size = queries * len(contexts), nope_dim + rope_dim

    def make() -> Arguments:
        order = torch.randperm(sum(pages), device=at.device).to(torch.int32)
        table = torch.nn.utils.rnn.pad_sequence(order.split(pages), batch_first=True).contiguous()
        starts = at.tensor(list(range(0, tokens + 1, queries)))
        lengths = (queries,) * len(contexts)
        return {
            "q": at.normal(tokens, heads, size),
            "keys": rank**-0.5 * at.normal(heads, nope_dim, rank),
            "values": rank**-0.5 * at.normal(heads, value_dim, rank),
            "cache": _cache(at, sum(pages)),
            "sequences": PagedSequences(table, starts, at.tensor(contexts), lengths, contexts),
        }

    maps = heads * rank * (nope_dim + value_dim)
    moved = at.itemsize * (sum(contexts) * (rank + rope_dim) + maps + tokens * heads * (size + value_dim))
    seen = sum(queries * (context - queries) + queries * (queries + 1) / 2 for context in contexts)  # pairs of query and key
    absorbed = 2.0 * (tokens * maps + seen * heads * (2 * rank + rope_dim))
    expanded = 2.0 * (sum(contexts) * maps + seen * heads * (size + value_dim))
    context = contexts[0]
    return KernelCase(f"{len(contexts)} x {queries} over {context}", make, moved, absorbed if queries == 1 else expanded)


LATENT_SHAPES: dict[str, Maker] = {"store_latents": _store_latents, "latent_attention": _latent_attention}
