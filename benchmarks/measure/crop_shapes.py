"""Shapes at which ops are timed that came with Phi-4-multimodal: adapters, reduced pictures, one query a crop. For any model:
few have them, so the sizes are those of the published one."""

from collections.abc import Iterator
from functools import partial

import torch

from benchmarks.measure.kernel_case import Arguments, KernelCase, Maker, Setting

_RANK, _SIDE, _PATCH = 256, 448, 14
_HEADS, _HEAD_DIM = 16, 72


def _add_low_rank(at: Setting) -> Iterator[KernelCase]:
    hidden, rank = at.spec.text.hidden_size, min(_RANK, at.spec.text.hidden_size // 4)

    def make(rows: int) -> Arguments:
        return {
            "out": at.normal(rows, hidden),
            "x": at.normal(rows, hidden),
            "down": hidden**-0.5 * at.normal(rank, hidden),
            "up": rank**-0.5 * at.normal(hidden, rank),
            "gates": at.normal(rows, 1).repeat(1, rank),
        }

    for rows in at.sizes.rows:
        moved = at.itemsize * (3 * rows * hidden + 2 * rank * hidden + rows * rank)
        yield KernelCase(f"{rows}x{hidden}, rank {rank}", partial(make, rows), moved, 4.0 * rows * hidden * rank)


def _thumbnail_patches(at: Setting) -> Iterator[KernelCase]:
    def make(height: int, width: int) -> Arguments:
        return {
            "images": at.integers(0, 256, 1, height, width, 3, dtype=torch.uint8),
            "height": _SIDE,
            "width": _SIDE,
            "mean": (0.5, 0.5, 0.5),
            "std": (0.5, 0.5, 0.5),
            "patch_size": _PATCH,
            "dtype": at.dtype,
        }

    for height, width in at.sizes.pixels:
        moved = 3 * (height * width + at.itemsize * _SIDE**2)
        yield KernelCase(f"{height}x{width}", partial(make, height, width), moved)


def _query_attention(at: Setting) -> Iterator[KernelCase]:
    def make(crops: int, keys: int) -> Arguments:
        kv = at.normal(crops, keys, 2, _HEADS, _HEAD_DIM)
        q = at.normal(crops, _HEADS, _HEAD_DIM)
        return {"q": q, "k": kv[:, :, 0], "v": kv[:, :, 1], "scale": _HEAD_DIM**-0.5}

    for crops in at.sizes.decode_rows:
        keys = (_SIDE // _PATCH) ** 2
        numbers = crops * (2 * keys + 2) * _HEADS * _HEAD_DIM
        yield KernelCase(f"{crops} x 1 over {keys}", partial(make, crops, keys), at.itemsize * numbers, 2.0 * numbers)


CROP_SHAPES: dict[str, Maker] = {
    "add_low_rank": _add_low_rank,
    "thumbnail_patches": _thumbnail_patches,
    "query_attention": _query_attention,
}
