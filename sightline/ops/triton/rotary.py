"""Rotary positions of the tower, in place in the packed projection.

A head is rotated in pairs (i, i + size/2). All pairs of q and k of a patch lie one after another, so a program takes a block of
patches and a block of pairs, whatever the head size: nothing is padded. Angles are read from the model's one table by row and
column; what the table has for all rows and columns of a picture fits the caches.
"""

import torch
import triton
import triton.language as tl

from sightline.ops.rotary import RotaryTable, vision_rotary
from sightline.ops.triton import runs_here

_PATCHES, _PAIRS = 8, 128


@triton.jit
def _rotate(
    qkv, row_col, cos_table, sin_table, patches, patch_stride, part_stride, head_stride,
    heads: tl.constexpr, head_dim: tl.constexpr, BLOCK_PATCHES: tl.constexpr, BLOCK_PAIRS: tl.constexpr,
):  # fmt: skip
    half: tl.constexpr = head_dim // 2
    quarter: tl.constexpr = head_dim // 4
    patch = tl.program_id(0) * BLOCK_PATCHES + tl.arange(0, BLOCK_PATCHES)
    pair = tl.program_id(1) * BLOCK_PAIRS + tl.arange(0, BLOCK_PAIRS)
    inside = (patch < patches)[:, None] & (pair < 2 * heads * half)[None, :]
    place = pair % half
    head = pair // half
    part_offset = (head // heads) * part_stride + (head % heads) * head_stride + place
    address = qkv + patch.to(tl.int64)[:, None] * patch_stride + part_offset[None, :]
    low = tl.load(address, mask=inside).to(tl.float32)
    high = tl.load(address + half, mask=inside).to(tl.float32)
    at = tl.load(row_col + 2 * patch[:, None] + (place // quarter)[None, :], mask=inside, other=0)  # row, then column
    angle = at * quarter + (place % quarter)[None, :]
    cos = tl.load(cos_table + angle, mask=inside)
    sin = tl.load(sin_table + angle, mask=inside)
    tl.store(address, (low * cos - high * sin).to(qkv.dtype.element_ty), mask=inside)
    tl.store(address + half, (high * cos + low * sin).to(qkv.dtype.element_ty), mask=inside)


def _takes(qkv: torch.Tensor, row_col: torch.Tensor, table: RotaryTable) -> bool:
    return runs_here(qkv) and qkv.stride(3) == 1 and qkv.shape[3] % 4 == 0 and row_col.is_contiguous()


@vision_rotary.twin("triton", when=_takes)
def vision_rotary_triton(qkv: torch.Tensor, row_col: torch.Tensor, table: RotaryTable) -> None:
    patches, _, heads, head_dim = qkv.shape
    assert row_col.shape == (patches, 2) and table.cos.shape[1] == head_dim // 4
    grid = (triton.cdiv(patches, _PATCHES), triton.cdiv(heads * head_dim, _PAIRS))
    _rotate[grid](
        qkv, row_col, table.cos, table.sin, patches, qkv.stride(0), qkv.stride(1), qkv.stride(2),
        heads, head_dim, _PATCHES, _PAIRS,
    )  # fmt: skip
