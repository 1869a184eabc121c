"""Embedding rows and vision rows in one pass: a program copies a part of one token's row from where it comes."""

import torch
import triton
import triton.language as tl

from sightline.ops.merge_embeddings import merge_embeddings
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
    token_ids: torch.Tensor, table: torch.Tensor, vision_embeddings: torch.Tensor | None, embedding_index: torch.Tensor | None
) -> bool:
    vision = vision_embeddings is None or (vision_embeddings.stride(1) == 1 and vision_embeddings.dtype == table.dtype)
    return runs_here(table) and table.is_contiguous() and token_ids.numel() > 0 and vision


@merge_embeddings.kernel("triton", when=_takes, graph_safe=True)
def merge_embeddings_triton(
    token_ids: torch.Tensor, table: torch.Tensor, vision_embeddings: torch.Tensor | None, embedding_index: torch.Tensor | None
) -> torch.Tensor:
    assert token_ids.is_contiguous() and token_ids.dtype == torch.int64
    tokens, size = len(token_ids), table.shape[1]
    out = table.new_empty(tokens, size)
    grid = (tokens, triton.cdiv(size, _BLOCK))
    if vision_embeddings is None or embedding_index is None:
        _embed[grid](token_ids, table, table, token_ids, out, 0, size, False, _BLOCK, num_warps=4)
    else:
        assert embedding_index.is_contiguous() and embedding_index.dtype == torch.int64 and vision_embeddings.shape[1] >= size
        _embed[grid](
            token_ids, table, vision_embeddings, embedding_index, out, vision_embeddings.stride(0), size, True, _BLOCK,
            num_warps=4,
        )  # fmt: skip
    return out
