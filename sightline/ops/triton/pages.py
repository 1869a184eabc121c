"""Keys and values out of their pages: a program copies a few tokens of one sequence, all their heads. And pages to others."""

from collections.abc import Sequence

import numpy as np
import torch
import triton
import triton.language as tl

from sightline.ops.paged_cache import PagedCache
from sightline.ops.pages import copy_pages, gather_pages, gathered, rows_of
from sightline.ops.transfer import send
from sightline.ops.triton import next_power_of_2, runs_here
from sightline.ops.workspace import Workspace

_TOKENS = 8  # of a program
_MOST = 8192  # numbers of a token's keys
_WORD = 8  # bytes that are copied as one number
_WORDS = 1024  # of a program
_SEQUENCES = 256  # whose lengths are read at least: few numbers of them mean few kernels to compile


@triton.jit(do_not_specialize=["sequences", "max_pages"])
def _gather(
    k_cache, v_cache, k_scales, v_scales, page_table, context_lengths, keys, values, starts, sequences, max_pages,
    multiple: tl.constexpr, page_size: tl.constexpr, size: tl.constexpr, head_dim: tl.constexpr, SIZE: tl.constexpr,
    TOKENS: tl.constexpr, SEQUENCES: tl.constexpr, QUANTISED: tl.constexpr,
):  # fmt: skip
    sequence = tl.program_id(1)
    before = tl.arange(0, SEQUENCES)
    lengths = tl.load(context_lengths + before, mask=before < sequence, other=0)
    start = tl.sum(tl.cdiv(lengths, multiple) * multiple, 0)
    context = tl.load(context_lengths + sequence)
    rows = tl.cdiv(context, multiple) * multiple
    first = tl.program_id(0) * TOKENS
    if first == 0:
        tl.store(starts + sequence, start)
        if sequence == sequences - 1:
            tl.store(starts + sequences, start + rows)
    if first < rows:
        token = first + tl.arange(0, TOKENS)
        number = tl.arange(0, SIZE)
        known = token < context
        page = tl.load(page_table + sequence * max_pages + token // page_size, mask=known, other=0).to(tl.int64)
        slot = page * page_size + token % page_size
        source = slot[:, None] * size + number[None, :]
        target = (start + token).to(tl.int64)[:, None] * size + number[None, :]
        whole = number[None, :] < size
        own, inside = known[:, None] & whole, (token < rows)[:, None] & whole
        k = tl.load(k_cache + source, mask=own, other=0.0)
        v = tl.load(v_cache + source, mask=own, other=0.0)
        if QUANTISED:
            scale = slot[:, None] * (size // head_dim) + number[None, :] // head_dim
            k = k.to(tl.float32) * tl.load(k_scales + scale, mask=own, other=0.0)
            v = v.to(tl.float32) * tl.load(v_scales + scale, mask=own, other=0.0)
        tl.store(keys + target, k.to(keys.dtype.element_ty), mask=inside)
        tl.store(values + target, v.to(values.dtype.element_ty), mask=inside)


def _takes(cache: PagedCache, page_table: torch.Tensor, *_: object, **__: object) -> bool:
    contiguous = cache.is_contiguous and page_table.is_contiguous()
    return runs_here(cache.keys) and contiguous and cache.keys.shape[2] * cache.keys.shape[3] <= _MOST


@gather_pages.kernel("triton", when=_takes)
def gather_pages_triton(
    cache: PagedCache,
    page_table: torch.Tensor,
    context_lengths: torch.Tensor,
    context_lengths_host: tuple[int, ...],
    multiple: int,
    dtype: torch.dtype,
    workspace: Workspace,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    _, page_size, kv_heads, head_dim = cache.keys.shape
    sequences, size = len(context_lengths_host), kv_heads * head_dim
    rows = rows_of(context_lengths_host, multiple)
    keys, values = workspace.take(*gathered(rows, kv_heads, head_dim, dtype))
    starts = torch.empty(sequences + 1, dtype=torch.int32, device=cache.keys.device)
    longest = rows_of((max(context_lengths_host),), multiple)
    _gather[(triton.cdiv(longest, _TOKENS), sequences)](
        cache.keys, cache.values, *cache.scales_for_kernel, page_table, context_lengths, keys, values, starts, sequences,
        page_table.shape[1], multiple, page_size, size, head_dim, next_power_of_2(size), _TOKENS,
        max(_SEQUENCES, next_power_of_2(sequences)), cache.quantised, num_warps=4,
    )  # fmt: skip
    return keys, values, starts


@triton.jit
def _copy(addresses, sources, targets, words, WORDS: tl.constexpr):
    """A page of one cache, in words of 8 bytes: one launch for all layers, which each have caches of their own."""
    cache = tl.load(addresses + tl.program_id(1)).to(tl.pointer_type(tl.int64))
    source, target = tl.load(sources + tl.program_id(2)), tl.load(targets + tl.program_id(2))
    word = tl.program_id(0) * WORDS + tl.arange(0, WORDS)
    inside = word < words
    tl.store(cache + target * words + word, tl.load(cache + source * words + word, mask=inside), mask=inside)


def _copies(caches: Sequence[torch.Tensor], *_: object, **__: object) -> bool:
    first = caches[0]
    alike = all(cache.is_contiguous() and cache.shape == first.shape and cache.dtype == first.dtype for cache in caches)
    return runs_here(first) and alike and first[0].nbytes % _WORD == 0


@copy_pages.kernel("triton", when=_copies)
def copy_pages_triton(caches: Sequence[torch.Tensor], sources: torch.Tensor, targets: torch.Tensor) -> None:
    addresses = send(np.array([cache.data_ptr() for cache in caches], np.int64), sources.device)
    words = caches[0][0].nbytes // _WORD
    grid = (triton.cdiv(words, _WORDS), len(caches), len(sources))
    _copy[grid](addresses, sources, targets, words, _WORDS, num_warps=4)
