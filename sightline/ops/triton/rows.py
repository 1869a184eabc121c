"""Embedding rows and vision rows in one pass: a program copies a part of one token's row from where it comes."""

import torch
import triton
import triton.language as tl

from sightline.ops.rows import embed_rows
from sightline.ops.triton import runs_here

_BLOCK = 1024


@triton.jit
def _embed(token_ids, table, rows, index, out, rows_stride, size: tl.constexpr, VISION: tl.constexpr, BLOCK: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < size
    number = tl.load(token_ids + token)
    if VISION:
        row = tl.load(index + token)
        text = tl.load(table + number * size + column, mask=inside & (row < 0), other=0.0)
        vision = tl.load(rows + row * rows_stride + column, mask=inside & (row >= 0), other=0.0)
        value = tl.where(row >= 0, vision, text)
    else:
        value = tl.load(table + number * size + column, mask=inside, other=0.0)
    tl.store(out + token * size + column, value, mask=inside)


def _takes(
    token_ids: torch.Tensor, table: torch.Tensor, vision_rows: torch.Tensor | None, row_index: torch.Tensor | None
) -> bool:
    vision = vision_rows is None or (vision_rows.stride(1) == 1 and vision_rows.dtype == table.dtype)
    return runs_here(table) and table.is_contiguous() and token_ids.numel() > 0 and vision


@embed_rows.twin("triton", when=_takes, recordable=True)
def embed_rows_triton(
    token_ids: torch.Tensor, table: torch.Tensor, vision_rows: torch.Tensor | None, row_index: torch.Tensor | None
) -> torch.Tensor:
    assert token_ids.is_contiguous() and token_ids.dtype == torch.int64
    tokens, size = len(token_ids), table.shape[1]
    out = table.new_empty(tokens, size)
    grid = (tokens, triton.cdiv(size, _BLOCK))
    if vision_rows is None or row_index is None:
        _embed[grid](token_ids, table, table, token_ids, out, 0, size, False, _BLOCK, num_warps=4)
    else:
        assert row_index.is_contiguous() and row_index.dtype == torch.int64 and vision_rows.shape[1] >= size
        _embed[grid](
            token_ids, table, vision_rows, row_index, out, vision_rows.stride(0), size, True, _BLOCK, num_warps=4
        )  # fmt: skip
    return out
