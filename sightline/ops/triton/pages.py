"""Keys and values out of their pages: a program copies a few tokens of one sequence, all their heads."""

import torch
import triton
import triton.language as tl

from sightline.ops.pages import GatheringRoom, gather_pages, rows_of
from sightline.ops.triton import next_power_of_2, runs_here

_TOKENS = 8  # of a program
_MOST = 8192  # numbers of a token's keys
_SEQUENCES = 256  # whose lengths are read at least: few numbers of them mean few kernels to compile


@triton.jit(do_not_specialize=["sequences", "max_pages"])
def _gather(
    k_cache, v_cache, page_table, context_lengths, keys, values, starts, sequences, max_pages, multiple: tl.constexpr,
    page_size: tl.constexpr, size: tl.constexpr, SIZE: tl.constexpr, TOKENS: tl.constexpr, SEQUENCES: tl.constexpr,
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
        source = (page * page_size + token % page_size)[:, None] * size + number[None, :]
        target = (start + token).to(tl.int64)[:, None] * size + number[None, :]
        whole = number[None, :] < size
        own, inside = known[:, None] & whole, (token < rows)[:, None] & whole
        k = tl.load(k_cache + source, mask=own, other=0.0)
        v = tl.load(v_cache + source, mask=own, other=0.0)
        tl.store(keys + target, k, mask=inside)
        tl.store(values + target, v, mask=inside)


def _takes(k_cache: torch.Tensor, v_cache: torch.Tensor, page_table: torch.Tensor, *_: object, **__: object) -> bool:
    contiguous = k_cache.is_contiguous() and v_cache.is_contiguous() and page_table.is_contiguous()
    return runs_here(k_cache) and contiguous and k_cache.shape[2] * k_cache.shape[3] <= _MOST


@gather_pages.twin("triton", when=_takes)
def gather_pages_triton(
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    page_table: torch.Tensor,
    context_lengths: torch.Tensor,
    context_lengths_host: tuple[int, ...],
    multiple: int,
    room: GatheringRoom,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    page_size, *row = k_cache.shape[1:]
    sequences, size = len(context_lengths_host), row[0] * row[1]
    rows = rows_of(context_lengths_host, multiple)
    keys, values = room.take(rows, k_cache, v_cache)
    starts = torch.empty(sequences + 1, dtype=torch.int32, device=k_cache.device)
    longest = rows_of((max(context_lengths_host),), multiple)
    _gather[(triton.cdiv(longest, _TOKENS), sequences)](
        k_cache, v_cache, page_table, context_lengths, keys, values, starts, sequences, page_table.shape[1], multiple,
        page_size, size, next_power_of_2(size), _TOKENS, max(_SEQUENCES, next_power_of_2(sequences)), num_warps=4,
    )  # fmt: skip
    return keys, values, starts
