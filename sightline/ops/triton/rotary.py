"""Rotary positions of the tower, in place in the packed projection.

A head is rotated in pairs (i, i + size/2). All pairs of q and k of all patches stand in one line, and a program takes some of
it, whatever the head size: no place in a tile is empty. Halves of 36 or 40 numbers are whole groups of four, which are read at
once. Angles come from the model's one table by row and column.
"""

import torch
import triton
import triton.language as tl

from sightline.ops.rotary import RotaryTable, vision_rotary
from sightline.ops.triton import runs_here

_PAIRS = 1024  # of a program


@triton.jit
def _rotate(
    qkv, row_col, cos_table, sin_table, pairs, patch_stride, part_stride, head_stride,
    heads: tl.constexpr, head_dim: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    half: tl.constexpr = head_dim // 2
    quarter: tl.constexpr = head_dim // 4
    of_patch: tl.constexpr = 2 * heads * half
    pair = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    known = pair < pairs
    patch = pair // of_patch
    within = pair % of_patch
    head = within // half  # of q, then of k
    place = within % half
    at = tl.load(row_col + 2 * patch + place // quarter, mask=known, other=0)  # row, then column
    angle = at * quarter + place % quarter
    cos = tl.load(cos_table + angle, mask=known, other=1.0)
    sin = tl.load(sin_table + angle, mask=known, other=0.0)
    address = qkv + patch.to(tl.int64) * patch_stride + (head // heads) * part_stride + (head % heads) * head_stride + place
    low = tl.load(address, mask=known, other=0.0).to(tl.float32)
    high = tl.load(address + half, mask=known, other=0.0).to(tl.float32)
    tl.store(address, (low * cos - high * sin).to(qkv.dtype.element_ty), mask=known)
    tl.store(address + half, (high * cos + low * sin).to(qkv.dtype.element_ty), mask=known)


def _takes(qkv: torch.Tensor, row_col: torch.Tensor, table: RotaryTable) -> bool:
    pairs = qkv.shape[0] * qkv.shape[2] * qkv.shape[3]
    return (
        runs_here(qkv) and qkv.stride(3) == 1 and qkv.shape[3] % 4 == 0 and row_col.is_contiguous() and pairs < 2**31 - _PAIRS
    )


@vision_rotary.twin("triton", when=_takes, recordable=True)
def vision_rotary_triton(qkv: torch.Tensor, row_col: torch.Tensor, table: RotaryTable) -> None:
    patches, _, heads, head_dim = qkv.shape
    assert row_col.shape == (patches, 2) and table.cos.shape[1] == head_dim // 4
    pairs = patches * heads * head_dim
    _rotate[(triton.cdiv(pairs, _PAIRS),)](
        qkv, row_col, table.cos, table.sin, pairs, qkv.stride(0), qkv.stride(1), qkv.stride(2), heads, head_dim, _PAIRS,
        num_warps=4,
    )  # fmt: skip
