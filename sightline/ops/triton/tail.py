"""Queries and joins of attention in parts."""

import torch
import triton
import triton.language as tl

from sightline.ops.tail import MOST_PARTS, join_parts, repeat_tail
from sightline.ops.triton import next_power_of_2, runs_here

_PARTS = next_power_of_2(MOST_PARTS + 1)
_WIDTH = 1024  # numbers of a row that one program copies


@triton.jit(do_not_specialize=["rows", "body", "size", "parts"])
def _repeat_tail(
    q, starts, queries, body_starts, query_starts, key_starts, rows, body, size, parts, stride: tl.constexpr,
    width: tl.constexpr, PARTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(q + (body + row).to(tl.int64) * stride + column, mask=column < width)
    for part in range(parts):
        tl.store(queries + (part * rows + row).to(tl.int64) * width + column, values, mask=column < width)
    if row == 0 and tl.program_id(1) == 0:
        index = tl.arange(0, PARTS)
        count = tl.load(starts + 1)
        tl.store(body_starts + index, tl.where(index == 1, tl.minimum(count, body), 0), mask=index < 2)
        tl.store(query_starts + index, index * rows, mask=index <= parts)
        tl.store(key_starts + index, tl.minimum(index * size, count), mask=index <= parts)


def _heads_are_adjacent(q: torch.Tensor, segment_starts: torch.Tensor, body: int, parts: int, size: int) -> bool:
    return runs_here(q) and q.stride(2) == 1 and q.stride(1) == q.shape[2] and len(q) > body


@repeat_tail.kernel("triton", when=_heads_are_adjacent, graph_safe=True)
def repeat_tail_triton(
    q: torch.Tensor, segment_starts: torch.Tensor, body: int, parts: int, size: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    assert segment_starts.shape == (2,) and segment_starts.dtype == torch.int32
    rows, heads, head_dim = q[body:].shape
    queries = q.new_empty(parts * rows, heads, head_dim)
    body_starts = torch.empty_like(segment_starts)
    query_starts, key_starts = segment_starts.new_empty(parts + 1), segment_starts.new_empty(parts + 1)
    width = heads * head_dim
    _repeat_tail[(rows, -(-width // _WIDTH))](
        q, segment_starts, queries, body_starts, query_starts, key_starts, rows, body, size, parts, q.stride(0), width,
        _PARTS, _WIDTH,
    )  # fmt: skip
    return queries, body_starts, query_starts, key_starts


@triton.jit(do_not_specialize=["rows", "parts"])
def _join_tail(
    attended, log_sums, out, rows, parts, heads: tl.constexpr, size: tl.constexpr, PARTS: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    head = tl.program_id(1)
    part = tl.arange(0, PARTS)
    column = tl.arange(0, SIZE)
    known = part < parts
    logs = tl.load(log_sums + head * parts * rows + part * rows + row, mask=known, other=float("-inf"))
    shares = tl.exp(logs - tl.max(logs, 0))
    shares = shares / tl.sum(shares, 0)
    source = attended + ((part * rows + row).to(tl.int64)[:, None] * heads + head) * size + column[None, :]
    values = tl.load(source, mask=known[:, None] & (column < size)[None, :], other=0.0).to(tl.float32)
    joined = tl.sum(shares[:, None] * values, 0)
    tl.store(out + (row.to(tl.int64) * heads + head) * size + column, joined.to(out.dtype.element_ty), mask=column < size)


def _takes(attended: torch.Tensor, log_sums: torch.Tensor, parts: int, out: torch.Tensor) -> bool:
    return runs_here(attended) and len(out) > 0 and out.is_contiguous()


@join_parts.kernel("triton", when=_takes, graph_safe=True)
def join_parts_triton(attended: torch.Tensor, log_sums: torch.Tensor, parts: int, out: torch.Tensor) -> None:
    assert attended.is_contiguous() and log_sums.is_contiguous()
    rows, heads, size = out.shape
    _join_tail[(rows, heads)](attended, log_sums, out, rows, parts, heads, size, _PARTS, next_power_of_2(size), num_warps=1)
