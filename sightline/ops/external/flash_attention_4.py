"""Attention through flash-attn-4, whose kernels are compiled when a head size is first seen (some seconds)."""

import functools
import inspect
from typing import Any

import torch

from sightline.ops.external.compiler import without_the_compiler

with without_the_compiler():
    from flash_attn.cute import flash_attn_varlen_func
    from flash_attn.cute.interface import _flash_attn_fwd

from sightline.ops.attention import CUDNN, FA4, paged_attention, segment_attention
from sightline.ops.paged_cache import PagedCache
from sightline.ops.pages import KEYS_AT_ONCE, gather_pages, is_worth_gathering
from sightline.ops.sequences import PagedSequences
from sightline.ops.tail import Tail, join_parts, repeat_tail, split_tail
from sightline.ops.triton.paged_chunks import CHUNKS

# Pages as large as its tiles (80 to 144 keys) it reads whole, and what stands behind a sequence's last token must then be
# finite: with not-a-number there, answers were not-a-number on an H200. Smaller pages it reads token by token.
_PAGE_SIZES = (1, 2, 4, 8, 16, 32, 64)

# It is no part of the library's interface and may go in a later version; then its own choice of tiles is used.
_TILES_CAN_BE_CHOSEN = {"tile_mn", "mma_pv_is_rs", "intra_wg_overlap"} <= set(inspect.signature(_flash_attn_fwd).parameters)


def _takes(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *_: Any, **__: Any) -> bool:
    size = q.shape[-1]
    aligned = all(x.stride(-1) == 1 and x.stride(0) % 8 == 0 and x.stride(1) % 8 == 0 for x in (q, k, v))
    return q.is_cuda and q.dtype in (torch.bfloat16, torch.float16) and size % 16 == 0 and 64 <= size <= 128 and aligned


# Segments come from their starts on the device; the longest length is only a bound.
@segment_attention.kernel("flash-attn-4", when=_takes, graph_safe=True, before=CUDNN, backend=FA4)
def segment_attention_fa4(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    segment_starts: torch.Tensor,
    segment_lengths: tuple[int, ...],
    scale: float,
) -> torch.Tensor:
    longest = max(segment_lengths)
    tile = _tile(q.shape[2], longest)
    tail = None
    if tile is not None and len(segment_starts) == 2:
        tail = split_tail(longest, q.shape[1], tile["tile_mn"][0], _multiprocessors(q.device))
    if tile is not None and tail is not None:
        return _attend_tail_apart(q, k, v, segment_starts, longest, scale, tile, tail)
    lengths = {
        "cu_seqlens_q": segment_starts,
        "cu_seqlens_k": segment_starts,
        "max_seqlen_q": longest,
        "max_seqlen_k": longest,
        "softmax_scale": scale,
    }
    found = flash_attn_varlen_func(q, k, v, **lengths) if tile is None else _flash_attn_fwd(q, k, v, **lengths, **tile)
    out: torch.Tensor = found[0] if isinstance(found, tuple) else found
    return out


def _attend_tail_apart(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    segment_starts: torch.Tensor,
    longest: int,
    scale: float,
    tile: dict[str, Any],
    tail: Tail,
) -> torch.Tensor:
    """One segment. How many of its tokens are real only the device knows; `longest` is a bound."""
    queries, body_starts, query_starts, key_starts = repeat_tail(q, segment_starts, tail.body, tail.parts, tail.size)
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    common = {"softmax_scale": scale, **tile}
    _flash_attn_fwd(
        q[: tail.body],
        k,
        v,
        cu_seqlens_q=body_starts,
        cu_seqlens_k=segment_starts,
        max_seqlen_q=tail.body,
        max_seqlen_k=longest,
        out=out[: tail.body],
        **common,
    )
    attended, log_sums, *_ = _flash_attn_fwd(
        queries,
        k,
        v,
        cu_seqlens_q=query_starts,
        cu_seqlens_k=key_starts,
        max_seqlen_q=len(q) - tail.body,
        max_seqlen_k=tail.size,
        return_lse=True,
        **common,
    )
    join_parts(attended, log_sums, tail.parts, out[tail.body :])
    return out


@functools.cache
def _multiprocessors(device: torch.device) -> int:
    count: int = torch.cuda.get_device_properties(device).multi_processor_count
    return count


def _tile(head_size: int, longest: int) -> dict[str, Any] | None:
    """Queries and keys that a program takes at once, where others than the library's own were faster on an H200, timed by hand.

    Heads of 80, milliseconds with (192, 160) and with the library's choice, (192, 144): 0.150 and 0.155 for 3,520 patches,
    0.670 and 0.681 for 8,160, 1.99 and 2.04 for 14,400, 0.916 and 0.946 for 4 x 4,800; but 0.026 and 0.024 for 1,296.
    """
    if _TILES_CAN_BE_CHOSEN and 64 < head_size <= 96 and longest >= 2048:
        return {"tile_mn": (192, 160), "mma_pv_is_rs": False, "intra_wg_overlap": True}
    return None


def _takes_pages(q: torch.Tensor, cache: PagedCache, sequences: PagedSequences) -> bool:
    """It reads no 8-bit floats here: those it takes gathered, or not at all."""
    fits = q.shape[2] in KEYS_AT_ONCE and cache.keys.shape[1] in _PAGE_SIZES and q.is_contiguous() and cache.is_contiguous
    if not (q.is_cuda and q.dtype in (torch.bfloat16, torch.float16) and fits):
        return False
    return not cache.quantised or _gathers(q, sequences)


def _gathers(q: torch.Tensor, sequences: PagedSequences) -> bool:
    lengths = sequences.query_lengths_host, sequences.context_lengths_host
    return sequences.workspace is not None and is_worth_gathering(q.shape[2], *lengths)


# One query per sequence is left to the kernel that splits the keys. Contexts and pages come from the device.
@paged_attention.kernel("flash-attn-4", when=_takes_pages, graph_safe=True, before=CHUNKS, uses_workspace=True, backend=FA4)
def paged_attention_fa4(q: torch.Tensor, cache: PagedCache, sequences: PagedSequences) -> torch.Tensor:
    page_table, contexts = sequences.page_table, sequences.context_lengths_host
    lengths = {
        "cu_seqlens_q": sequences.query_starts,
        "max_seqlen_q": max(sequences.query_lengths_host),
        "max_seqlen_k": max(contexts),
        "seqused_k": sequences.context_lengths,
        "causal": True,
    }
    workspace = sequences.workspace
    if workspace is not None and _gathers(q, sequences):
        multiple = KEYS_AT_ONCE[q.shape[2]]
        keys, values, starts = gather_pages(
            cache, page_table, sequences.context_lengths, contexts, multiple, q.dtype, workspace
        )
        found = flash_attn_varlen_func(q, keys, values, cu_seqlens_k=starts, **lengths)
    else:
        found = flash_attn_varlen_func(q, cache.keys, cache.values, page_table=page_table, **lengths)
    out: torch.Tensor = found[0] if isinstance(found, tuple) else found
    return out
