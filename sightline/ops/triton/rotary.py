"""Rotary positions of the tower, in place in the packed projection.

A head is rotated in pairs (2i, 2i + 1), as towers have them on a GPU. A program takes a patch and many of its heads of q and k:
it reads the angles of its patch once, from the model's one table by row and column, and the heads that a thread holds share
them. Places that are padding are turned by nothing.
"""

import torch
import triton
import triton.language as tl

from sightline.ops.rotary import PatchRotary, vision_rotary
from sightline.ops.triton import next_power_of_2, runs_here

PATCHES, HEADS, WARPS = 1, 16, 1  # of a program, as measured on an H200


@triton.jit(do_not_specialize=["patches", "row_stride", "axis_stride"])
def _rotate(
    qkv, row_col, cos_table, sin_table, patches, row_stride, axis_stride, patch_stride, part_stride, head_stride,
    heads: tl.constexpr, half: tl.constexpr, quarter: tl.constexpr, BLOCK_PATCHES: tl.constexpr, BLOCK_HEADS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """half: pairs of a head's places; quarter: frequencies of an axis, of which a half has two lots."""
    patch = tl.program_id(0) * BLOCK_PATCHES + tl.arange(0, BLOCK_PATCHES)
    head = tl.program_id(1) * BLOCK_HEADS + tl.arange(0, BLOCK_HEADS)  # of q, then of k
    pair = tl.arange(0, BLOCK)
    row = tl.load(row_col + patch * row_stride, mask=patch < patches, other=0)
    column = tl.load(row_col + patch * row_stride + axis_stride, mask=patch < patches, other=0)
    angle = tl.where((pair < quarter)[None, :], row[:, None] * quarter + pair, column[:, None] * quarter + pair - quarter)
    turns = (patch < patches)[:, None] & (pair < 2 * quarter)[None, :]
    cos = tl.load(cos_table + angle, mask=turns, other=1.0)[:, None, :]
    sin = tl.load(sin_table + angle, mask=turns, other=0.0)[:, None, :]
    head_offset = (head // heads) * part_stride + (head % heads) * head_stride
    place = tl.arange(0, 2 * BLOCK)
    known = (patch < patches)[:, None, None] & (head < 2 * heads)[None, :, None] & (place < 2 * half)[None, None, :]
    address = qkv + patch.to(tl.int64)[:, None, None] * patch_stride + head_offset[None, :, None] + place[None, None, :]
    pairs = tl.load(address, mask=known, other=0.0).to(tl.float32)
    low, high = tl.split(tl.reshape(pairs, (BLOCK_PATCHES, BLOCK_HEADS, BLOCK, 2)))
    turned = tl.join(low * cos - high * sin, high * cos + low * sin)
    tl.store(address, tl.reshape(turned, pairs.shape).to(qkv.dtype.element_ty), mask=known)


def _takes(qkv: torch.Tensor, row_col: torch.Tensor, rotary: PatchRotary) -> bool:
    return runs_here(qkv) and rotary.pairing == "adjacent" and qkv.stride(3) == 1 and qkv.shape[3] % 4 == 0


@vision_rotary.twin("triton", when=_takes, recordable=True)
def vision_rotary_triton(qkv: torch.Tensor, row_col: torch.Tensor, rotary: PatchRotary) -> None:
    table = rotary.table
    patches, _, heads, places = qkv.shape
    half, quarter = places // 2, table.cos.shape[1]
    assert row_col.shape == (patches, 2) and 2 * quarter <= half
    grid = (triton.cdiv(patches, PATCHES), triton.cdiv(2 * heads, HEADS))
    _rotate[grid](
        qkv, row_col, table.cos, table.sin, patches, *row_col.stride(), qkv.stride(0), qkv.stride(1), qkv.stride(2),
        heads, half, quarter, PATCHES, HEADS, next_power_of_2(half), num_warps=WARPS,
    )  # fmt: skip
