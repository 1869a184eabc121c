"""Attention of new tokens, from their projection on: norm per head, rotary, store, and attention over the pages."""

from collections.abc import Iterator
from typing import Any

import torch

from sightline.ops.attention import SDPA, paged_attention
from sightline.ops.dispatch import ExampleMaker, Tolerance, op
from sightline.ops.linear import TWO_OPS
from sightline.ops.paged_cache import PagedCache, quantised_cache
from sightline.ops.qkv import HeadNorms, rotate_and_store
from sightline.ops.rotary import Pairing, TextRotation, make_rotary_table, mrope_axes
from sightline.ops.sequences import PagedSequences
from sightline.ops.split_kv import SplitKV, make_split_kv


def _examples(make: ExampleMaker) -> Iterator[dict[str, Any]]:
    cases: tuple[tuple[int, int, int, int, Pairing, bool, int, tuple[int, ...], tuple[int, ...]], ...] = (
        # heads, kv_heads, head_dim, rotary_dim, pairing, norms, page_size, query lengths, context lengths (queries included)
        (4, 2, 128, 128, "halves", True, 16, (1, 1, 1), (1, 300, 64)),
        (8, 1, 64, 32, "adjacent", False, 4, (1, 1), (65, 17)),
        (6, 2, 64, 64, "halves", False, 16, (1,) * 9, (1, 900, 30, 1, 64, 2, 65, 17, 1)),  # one much longer than the others
        (4, 2, 128, 128, "halves", True, 16, (1,), (1500,)),
        (4, 4, 64, 64, "halves", True, 8, (5, 1, 3), (9, 30, 3)),
        (2, 1, 16, 12, "halves", True, 8, (1, 1), (9, 30)),
    )
    for heads, kv_heads, head_dim, rotary_dim, pairing, norms, page_size, queries, contexts in cases:
        needed = [-(-context // page_size) for context in contexts]
        pages = make.permutation(sum(needed) + 2, dtype=torch.int32).tolist()
        table = [[0] * max(needed) for _ in contexts]
        slots, first = [], 0
        for row, (count, new, context) in enumerate(zip(needed, queries, contexts, strict=True)):
            table[row][:count] = pages[first : first + count]
            first += count
            slots += [table[row][token // page_size] * page_size + token % page_size for token in range(context - new, context)]
        tokens, frequencies = sum(queries), rotary_dim // 2
        sections = (frequencies - 2 * (frequencies // 3), frequencies // 3, frequencies // 3)
        starts = [sum(queries[:count]) for count in range(len(queries) + 1)]
        cache = PagedCache(*(make.normal(len(pages), page_size, kv_heads, head_dim) for _ in range(2)))
        example = {
            "qkv": make.normal(tokens, heads + 2 * kv_heads, head_dim),
            "norms": HeadNorms(make.normal(head_dim), make.normal(head_dim), 1e-6) if norms else None,
            "rotation": TextRotation(
                make.integers(0, 300, 3, tokens),
                make_rotary_table(300, rotary_dim, 1e6, make.device),
                mrope_axes(sections, "blocked", make.device),
                pairing,
            ),
            "cache": cache,
            "slots": make.tensor(slots, torch.int64),
            "sequences": PagedSequences(make.tensor(table), make.tensor(starts), make.tensor(contexts), queries, contexts),
        }
        yield example
        yield {**example, "cache": quantised_cache(cache)}
        if tokens == len(queries) > 1:
            shared = make_split_kv(contexts, len(contexts) + 13, 64)
            yield {**example, "split_kv": SplitKV(**{name: make.tensor(values) for name, values in shared.items()})}


# In bfloat16 a key may round to its other neighbour; scores and weights move with it.
@op(
    examples=_examples,
    tolerances={torch.float32: Tolerance(2e-5, 2e-5), torch.bfloat16: Tolerance(3.2e-2, 3.2e-2)},
    backend=SDPA,
)
def attend_new_tokens(
    qkv: torch.Tensor,
    norms: HeadNorms | None,
    rotation: TextRotation,
    cache: PagedCache,
    slots: torch.Tensor,
    sequences: PagedSequences,
    split_kv: SplitKV | None = None,
) -> torch.Tensor:
    """rotate_and_store, whose arguments come first, and paged_attention. Returns [tokens, heads, head_dim].

    Slots are where the page table has the newest tokens of each sequence. split_kv, where each has one new token: how a kernel
    is to share out their keys.
    """
    q = rotate_and_store.definition(qkv, norms, rotation, cache, slots)
    return paged_attention.definition(q, cache, sequences)


@attend_new_tokens.kernel(TWO_OPS, when=lambda *_, **__: True, graph_safe=True)
def attend_new_tokens_in_two(
    qkv: torch.Tensor,
    norms: HeadNorms | None,
    rotation: TextRotation,
    cache: PagedCache,
    slots: torch.Tensor,
    sequences: PagedSequences,
    split_kv: SplitKV | None = None,
) -> torch.Tensor:
    q = rotate_and_store(qkv, norms, rotation, cache, slots)
    return paged_attention(q, cache, sequences)
