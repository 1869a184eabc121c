"""Pixels to patches: Pillow's bicubic and bilinear resize bit for bit, then normalisation and the cut into patches.

Pillow resizes in two passes, one per axis, each to uint8. An output pixel is a sum over the few input pixels under a bell, a
cubic or a triangle (stretched when shrinking), with weights rounded to 22 bits after the point and the sum kept in 32-bit
integers. Whole numbers give the same result on every device and in every order of summation, so nothing here depends on where
it runs.
"""

import functools
from collections.abc import Callable, Iterator
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from sightline.ops.dispatch import EXACT, ExampleMaker, op

WEIGHT_BITS = 22  # Pillow's PRECISION_BITS: 32 minus 8 of the pixel minus 2 of headroom
Resample = Literal["bicubic", "bilinear"]
# Values of one chunk of a pass. Each needs some ten bytes of scratch. On a CPU torch keeps an op of up to 2**15 values on the
# calling thread: hundreds of small parallel ops would spend their time waiting for each other's threads, seconds on busy cores.
_CHUNK_VALUES = {"cpu": 1 << 15}
_CHUNK_VALUES_ELSEWHERE = 1 << 25


def _resize_examples(make: ExampleMaker) -> Iterator[dict[str, Any]]:
    for frames, height, width, out_height, out_width in (
        (1, 72, 128, 70, 128),  # one axis
        (1, 90, 60, 42, 70),  # one smaller, one larger
        (1, 45, 64, 64, 96),  # larger
        (3, 96, 131, 32, 28),  # smaller, several frames
        (1, 1, 1, 28, 56),
    ):
        images = make.integers(0, 256, frames, height, width, 3, dtype=torch.uint8)
        yield {"images": images, "out_height": out_height, "out_width": out_width, "rows_first": False}
        yield {"images": images, "out_height": out_height, "out_width": out_width, "rows_first": True}


@op(examples=_resize_examples, tolerances={torch.float32: EXACT})
def resize_bicubic(images: torch.Tensor, out_height: int, out_width: int, rows_first: bool) -> torch.Tensor:
    """Image.resize((out_width, out_height), BICUBIC) of each frame. The order of the two passes shows in the last bit.

    images: uint8 [frames, height, width, 3] -> uint8 [frames, out_height, out_width, 3]; rows_first changes the number of rows
    before the number of columns (media/pillow.py knows which of the two Pillow does).
    """
    return _resize(images, out_height, out_width, rows_first, "bicubic")


@op(examples=_resize_examples, tolerances={torch.float32: EXACT})
def resize_bilinear(images: torch.Tensor, out_height: int, out_width: int, rows_first: bool) -> torch.Tensor:
    """As resize_bicubic, with the filter that Pillow calls BILINEAR: a triangle, stretched when shrinking."""
    return _resize(images, out_height, out_width, rows_first, "bilinear")


def _resize(images: torch.Tensor, out_height: int, out_width: int, rows_first: bool, resample: Resample) -> torch.Tensor:
    check_images(images)
    passes = [(2, out_width), (1, out_height)]  # (axis, its new size)
    if rows_first:
        passes.reverse()
    for axis, out_size in passes:
        if images.shape[axis] != out_size:
            images = _resize_axis(images, axis, out_size, resample)
    return images


def _resize_axis(images: torch.Tensor, axis: int, out_size: int, resample: Resample) -> torch.Tensor:
    """One pass along axis 1 (rows) or 2 (columns), in chunks along the axis before it, to bound the scratch."""
    indices, weights = taps_on_device(images.shape[axis], out_size, images.device, resample)
    out_shape = [*images.shape[:axis], out_size, *images.shape[axis + 1 :]]
    out = images.new_empty(out_shape)
    # Columns: each row of each frame is a line of pixels. Rows: each frame is a line of rows.
    lines_in, lines_out = images.flatten(0, axis - 1).flatten(2), out.flatten(0, axis - 1).flatten(2)
    for line_chunk, column_chunk in _chunks(lines_out.shape, images.device):
        source = lines_in[line_chunk]
        total = torch.full_like(lines_out[line_chunk, column_chunk], 1 << (WEIGHT_BITS - 1), dtype=torch.int32)
        for index, weight in zip(indices[:, column_chunk], weights[:, column_chunk, None], strict=True):
            total += source.index_select(1, index) * weight
        lines_out[line_chunk, column_chunk] = (total >> WEIGHT_BITS).clamp_(0, 255)
    return out


def _chunks(shape: torch.Size, device: torch.device) -> Iterator[tuple[slice, slice]]:
    """Cuts [lines, places, values] into pieces of a bounded number of values: whole lines if they fit, else parts of one."""
    lines, columns, values = shape
    most = _CHUNK_VALUES.get(device.type, _CHUNK_VALUES_ELSEWHERE)
    lines_at_once = max(1, most // (columns * values))
    columns_at_once = min(columns, max(1, most // values))
    for line in range(0, lines, lines_at_once):
        for column in range(0, columns, columns_at_once):
            yield slice(line, line + lines_at_once), slice(column, column + columns_at_once)


@functools.lru_cache(maxsize=256)
def taps_on_device(
    in_size: int, out_size: int, device: torch.device, resample: Resample = "bicubic"
) -> tuple[torch.Tensor, torch.Tensor]:
    """(indices, weights) on the device, both int32 [taps, out_size]."""
    starts, weights = resize_taps(in_size, out_size, resample)
    # Past the edge the weight is zero; the index only has to be valid.
    indices = np.minimum(starts + np.arange(len(weights), dtype=np.int32)[:, None], in_size - 1)
    return torch.from_numpy(indices).to(device), torch.from_numpy(weights).to(device)


def resize_taps(in_size: int, out_size: int, resample: Resample) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Output pixel i is the sum over t of in[starts[i] + t] * weights[t, i], in units of 2**-22.

    Every step is in float64 and in Pillow's order, the sum of the weights included: a last bit off can flip a rounding.
    """
    scale = in_size / out_size
    stretch = max(scale, 1.0)
    bell, bell_radius = _BELLS[resample]
    radius = bell_radius * stretch
    centres = (np.arange(out_size) + 0.5) * scale
    starts = np.maximum((centres - radius + 0.5).astype(np.int64), 0)  # astype cuts towards zero, as C does
    ends = np.minimum((centres + radius + 0.5).astype(np.int64), in_size)
    weights = np.zeros((int((ends - starts).max()), out_size))
    total = np.zeros(out_size)
    for tap, row in enumerate(weights):
        row[:] = np.where(starts + tap < ends, bell((tap + starts - centres + 0.5) * (1.0 / stretch)), 0.0)
        total += row
    weights = np.where(total != 0.0, weights / np.where(total != 0.0, total, 1.0), weights)
    whole = np.trunc(weights * (1 << WEIGHT_BITS) + np.where(weights < 0, -0.5, 0.5))
    return starts.astype(np.int32), whole.astype(np.int32)


def _cubic(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Keys' cubic with a = -0.5."""
    a = -0.5
    x = np.abs(x)
    inner = ((a + 2.0) * x - (a + 3.0)) * x * x + 1
    outer = (((x - 5) * x + 8) * x - 4) * a
    return np.where(x < 1.0, inner, np.where(x < 2.0, outer, 0.0))


def _triangle(x: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.maximum(1.0 - np.abs(x), 0.0)


_BELLS: dict[Resample, tuple[Callable[[NDArray[np.float64]], NDArray[np.float64]], float]] = {
    "bicubic": (_cubic, 2.0),  # and how far from its middle it reaches
    "bilinear": (_triangle, 1.0),
}


def _patchify_examples(make: ExampleMaker) -> Iterator[dict[str, Any]]:
    for frames, height, width, patch_size, compact in (
        (1, 64, 96, 16, True),
        (1, 56, 84, 14, False),
        (4, 56, 28, 14, False),
    ):
        yield {
            "images": make.integers(0, 256, frames, height, width, 3, dtype=torch.uint8),
            "mean": (0.48145466, 0.4578275, 0.40821073),
            "std": (0.26862954, 0.26130258, 0.27577711),
            "patch_size": patch_size,
            "temporal_patch_size": 2,
            "merge_size": 2,
            "compact": compact,
            "dtype": make.dtype,
        }


@op(examples=_patchify_examples, tolerances={torch.float32: EXACT, torch.bfloat16: EXACT, torch.float16: EXACT})
def patchify(
    images: torch.Tensor,
    mean: tuple[float, float, float],
    std: tuple[float, float, float],
    patch_size: int,
    temporal_patch_size: int,
    merge_size: int,
    compact: bool,
    dtype: torch.dtype,
) -> torch.Tensor:
    """Normalises frames and cuts them into patches, in the order in which the tower merges them.

    images: uint8 [frames, height, width, 3], sides multiples of patch_size * merge_size
    returns: dtype [grid_t * grid_h * grid_w, features]; rows run over (time, block row, block column, row in block, column in
    block), where a block is merge_size x merge_size patches.

        frames   compact   features
        1        True      (channel, y, x): a still, once
        1        False     (channel, time, y, x): a still, repeated temporal_patch_size times
        n * T    False     (channel, time, y, x): a video
    """
    time = check_patches(images, patch_size, temporal_patch_size, merge_size, compact)
    frames, height, width, channels = images.shape
    rows, columns = height // patch_size, width // patch_size
    blocks = images.reshape(
        frames // time,
        time,
        rows // merge_size,
        merge_size,
        patch_size,
        columns // merge_size,
        merge_size,
        patch_size,
        channels,
    )
    #        time group, block row, block column, row, column, channel, time, y, x
    pixels = blocks.permute(0, 2, 5, 3, 6, 8, 1, 4, 7)
    table = normalised_values(mean, std, images.device, dtype)
    channel_start = torch.arange(0, 256 * channels, 256, dtype=torch.int32, device=images.device)[:, None, None, None]
    patches = table.index_select(0, (pixels + channel_start).flatten())
    patches = patches.view(frames // time * rows * columns, channels, time, patch_size**2)
    if time == 1 and not compact:
        patches = patches.expand(-1, -1, temporal_patch_size, -1)
    return patches.flatten(1)


@functools.lru_cache(maxsize=32)
def normalised_values(
    mean: tuple[float, ...], std: tuple[float, ...], device: torch.device, dtype: torch.dtype
) -> torch.Tensor:
    """dtype [channels * 256]: what each value of each channel becomes.

    Rescaled in float64, rounded to float32, then normalised in float32: the steps of transformers' Pillow-backed processors.
    """
    values = (np.arange(256, dtype=np.float64) * (1 / 255)).astype(np.float32)
    table = (values - np.array(mean, np.float32)[:, None]) / np.array(std, np.float32)[:, None]
    return torch.from_numpy(table).flatten().to(device, dtype)


def check_patches(images: torch.Tensor, patch_size: int, temporal_patch_size: int, merge_size: int, compact: bool) -> int:
    """Refuses frames that do not divide; returns how many of them go into a patch: 1 for a still."""
    check_images(images)
    frames, height, width, _ = images.shape
    if height % (patch_size * merge_size) or width % (patch_size * merge_size):
        raise ValueError(
            f"frames of {width}x{height} pixels do not divide into {merge_size}x{merge_size} patches of {patch_size}"
        )
    time = 1 if frames == 1 else temporal_patch_size
    if frames % time or (compact and frames != 1):
        raise ValueError(f"{frames} frames do not make patches of {temporal_patch_size} frames (compact={compact})")
    return time


def check_images(images: torch.Tensor) -> None:
    if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[3] != 3 or 0 in images.shape:
        raise ValueError(f"images must be uint8 [frames, height, width, 3], not {images.dtype} {list(images.shape)}")
