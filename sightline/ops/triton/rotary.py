"""Rotary positions, in place: of any q and k, and of the tower's packed projection.

In the packed projection a head is rotated in pairs (2i, 2i + 1), as towers have them on a GPU. A program takes a patch and many
of its heads of q and k: it reads the angles of its patch once, from the model's one table by row and column, and the heads that
a thread holds share them. Places that are padding are turned by nothing.
"""

import torch
import triton
import triton.language as tl

from sightline.ops.rotary import Pairing, PatchRotary, RotaryAngles, rotary, vision_rotary
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
    dim = tl.arange(0, 2 * BLOCK)
    known = (patch < patches)[:, None, None] & (head < 2 * heads)[None, :, None] & (dim < 2 * half)[None, None, :]
    address = qkv + patch.to(tl.int64)[:, None, None] * patch_stride + head_offset[None, :, None] + dim[None, None, :]
    pairs = tl.load(address, mask=known, other=0.0).to(tl.float32)
    low, high = tl.split(tl.reshape(pairs, (BLOCK_PATCHES, BLOCK_HEADS, BLOCK, 2)))
    turned = tl.join(low * cos - high * sin, high * cos + low * sin)
    tl.store(address, tl.reshape(turned, pairs.shape).to(qkv.dtype.element_ty), mask=known)


def _takes(qkv: torch.Tensor, row_col: torch.Tensor, rotary: PatchRotary) -> bool:
    return runs_here(qkv) and rotary.pairing == "adjacent" and qkv.stride(3) == 1 and qkv.shape[3] % 4 == 0


@vision_rotary.kernel("triton", when=_takes, graph_safe=True)
def vision_rotary_triton(qkv: torch.Tensor, row_col: torch.Tensor, rotary: PatchRotary) -> None:
    table = rotary.table
    patches, _, heads, padded_head_dim = qkv.shape
    half, quarter = padded_head_dim // 2, table.cos.shape[1]
    assert row_col.shape == (patches, 2) and 2 * quarter <= half
    grid = (triton.cdiv(patches, PATCHES), triton.cdiv(2 * heads, HEADS))
    _rotate[grid](
        qkv, row_col, table.cos, table.sin, patches, *row_col.stride(), qkv.stride(0), qkv.stride(1), qkv.stride(2),
        heads, half, quarter, PATCHES, HEADS, next_power_of_2(half), num_warps=WARPS,
    )  # fmt: skip


@triton.jit
def _turn_heads(heads, known, low_place, high_place, cos, sin):
    """Heads that begin at the addresses `heads` [heads, 1], in place."""
    low = tl.load(heads + low_place, mask=known, other=0.0).to(tl.float32)
    high = tl.load(heads + high_place, mask=known, other=0.0).to(tl.float32)
    tl.store(heads + low_place, (low * cos - high * sin).to(heads.dtype.element_ty), mask=known)
    tl.store(heads + high_place, (high * cos + low * sin).to(heads.dtype.element_ty), mask=known)


@triton.jit(
    do_not_specialize=[
        "axis_stride", "token_stride", "q_token", "q_head", "k_token", "k_head", "heads", "kv_heads", "pairs", "frequencies",
    ]
)  # fmt: skip
def _rotate_any(
    q, k, cos_table, sin_table, index, axes, axis_stride, token_stride, q_token, q_head, k_token, k_head, heads, kv_heads,
    pairs, frequencies, READY: tl.constexpr, ADJACENT: tl.constexpr, BLOCK_HEADS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A token and some of its heads, first those of q; one kernel for all head sizes of a power of two of pairs."""
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * BLOCK_HEADS + tl.arange(0, BLOCK_HEADS)
    pair = tl.arange(0, BLOCK)
    known = pair < pairs
    if READY:
        at = token * pairs + pair
    else:
        axis = tl.load(axes + pair, mask=known, other=0)
        position = tl.load(index + axis * axis_stride + token * token_stride, mask=known, other=0).to(tl.int64)
        at = position * frequencies + pair % frequencies
    cos = tl.load(cos_table + at, mask=known, other=1.0)[None, :]
    sin = tl.load(sin_table + at, mask=known, other=0.0)[None, :]
    low_place = pair * 2 if ADJACENT else pair
    high_place = low_place + (1 if ADJACENT else pairs)
    of_q, of_k = head < heads, (head >= heads) & (head < heads + kv_heads)
    q_heads = q + token * q_token + head[:, None] * q_head
    k_heads = k + token * k_token + (head - heads)[:, None] * k_head
    _turn_heads(q_heads, of_q[:, None] & known[None, :], low_place[None, :], high_place[None, :], cos, sin)
    _turn_heads(k_heads, of_k[:, None] & known[None, :], low_place[None, :], high_place[None, :], cos, sin)


def _takes_any(q: torch.Tensor, k: torch.Tensor, angles: RotaryAngles, pairing: Pairing) -> bool:
    contiguous = angles.cos.is_contiguous() and angles.sin.is_contiguous()
    return runs_here(q) and q.stride(2) == k.stride(2) == 1 and contiguous and len(q) > 0


@rotary.kernel("triton", when=_takes_any, graph_safe=True)
def rotary_triton(q: torch.Tensor, k: torch.Tensor, angles: RotaryAngles, pairing: Pairing) -> None:
    heads, kv_heads, pairs = q.shape[1], k.shape[1], angles.pairs
    ready = angles.index is None or angles.axes is None
    index, axes = (angles.cos, angles.cos) if ready else (angles.index, angles.axes)  # what is ready is not looked up
    strides = (0, 0) if ready or angles.index is None else angles.index.stride()
    _rotate_any[(len(q), triton.cdiv(heads + kv_heads, HEADS))](
        q, k, angles.cos, angles.sin, index, axes, *strides, q.stride(0), q.stride(1), k.stride(0), k.stride(1), heads,
        kv_heads, pairs, angles.cos.shape[1], ready, pairing == "adjacent", HEADS, next_power_of_2(pairs), num_warps=2,
    )  # fmt: skip
