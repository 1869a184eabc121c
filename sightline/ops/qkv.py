"""What happens to queries, keys and values between their projection and attention: norm per head, rotary, store into pages."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch

from sightline.ops.dispatch import ExampleMaker, Tolerance, op
from sightline.ops.norms import rms_norm
from sightline.ops.paged_cache import PagedCache, quantised_cache
from sightline.ops.rotary import Pairing, TextRotation, make_rotary_table, mrope_axes, text_rotary


@dataclass(frozen=True)
class HeadNorms:
    """RMS norms of each head's queries and keys."""

    q_weight: torch.Tensor  # [head_dim]
    k_weight: torch.Tensor  # [head_dim]
    eps: float


def _examples(make: ExampleMaker) -> Iterator[dict[str, Any]]:
    cases: tuple[tuple[int, int, int, int, tuple[int, int, int], Literal["blocked", "interleaved"], Pairing, bool], ...] = (
        # heads, kv_heads, head_dim, rotary_dim, sections, layout, pairing, norms
        (4, 2, 128, 128, (24, 20, 20), "interleaved", "halves", True),
        (6, 2, 128, 128, (16, 24, 24), "blocked", "halves", False),
        (4, 1, 128, 64, (8, 12, 12), "blocked", "adjacent", False),
        (3, 1, 16, 12, (2, 2, 2), "blocked", "halves", True),
    )
    for heads, kv_heads, head_dim, rotary_dim, sections, layout, pairing, norms in cases:
        cache = PagedCache(*(make.normal(4, 4, kv_heads, head_dim) for _ in range(2)))
        example = {
            "qkv": make.normal(11, heads + 2 * kv_heads, head_dim),
            "norms": HeadNorms(make.normal(head_dim), make.normal(head_dim), 1e-6) if norms else None,
            "rotation": TextRotation(
                make.integers(0, 300, 3, 11),
                make_rotary_table(300, rotary_dim, 1e6, make.device),
                mrope_axes(sections, layout, make.device),
                pairing,
            ),
            "cache": cache,
            "slots": make.permutation(16)[:11],
        }
        yield example
        yield {**example, "cache": quantised_cache(cache)}


@op(examples=_examples, tolerances={torch.float32: Tolerance(1e-5, 1e-5), torch.bfloat16: Tolerance(3.2e-2, 1.6e-2)})
def rotate_and_store(
    qkv: torch.Tensor,
    norms: HeadNorms | None,
    rotation: TextRotation,
    cache: PagedCache,
    slots: torch.Tensor,
) -> torch.Tensor:
    """Queries ready for attention, [tokens, heads, head_dim]; keys and values go to their slots.

    qkv [tokens, heads + 2 * kv_heads, head_dim]; slots as in PagedCache.store.
    """
    kv_heads = cache.keys.shape[2]
    q, k, v = qkv.split([qkv.shape[1] - 2 * kv_heads, kv_heads, kv_heads], dim=1)
    if norms is not None:
        q = rms_norm.definition(q, norms.q_weight, norms.eps)
        k = rms_norm.definition(k, norms.k_weight, norms.eps)
    q, k = text_rotary(q, k, rotation)
    cache.store(k, v, slots)
    return q
