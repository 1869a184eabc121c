"""Pillow's two passes of a resize in whole numbers, and the cut into patches: each value is worked out by itself."""

import torch
import triton
import triton.language as tl

from sightline.ops.pixels import (
    WEIGHT_BITS,
    Resample,
    check_images,
    check_patches,
    normalised_values,
    patchify,
    resize_bicubic,
    resize_bilinear,
    taps_on_device,
)
from sightline.ops.triton import next_power_of_2, runs_here

_LINES, _VALUES = 4, 256


# Sizes of images are no part of what is compiled: a new one would hold everybody up while it is.
@triton.jit(do_not_specialize=["lines", "in_size", "out_size", "values", "taps"])
def _resize_pass(
    source, out, indices, weights, lines, in_size, out_size, values, taps,
    BITS: tl.constexpr, BLOCK_LINES: tl.constexpr, BLOCK_VALUES: tl.constexpr,
):  # fmt: skip
    """[lines, in_size, values] -> [lines, out_size, values]; a program takes some lines and some (place, value)."""
    line = (tl.program_id(0) * BLOCK_LINES + tl.arange(0, BLOCK_LINES)).to(tl.int64)
    at = tl.program_id(1) * BLOCK_VALUES + tl.arange(0, BLOCK_VALUES)
    offset = at // values
    value = at % values
    known = at < out_size * values
    inside = (line < lines)[:, None] & known[None, :]
    total = tl.full([BLOCK_LINES, BLOCK_VALUES], 1 << (BITS - 1), tl.int32)
    for tap in range(taps):
        index = tl.load(indices + tap * out_size + offset, mask=known, other=0)
        weight = tl.load(weights + tap * out_size + offset, mask=known, other=0)
        pixel = tl.load(source + (line * in_size * values)[:, None] + (index * values + value)[None, :], mask=inside, other=0)
        total += pixel.to(tl.int32) * weight[None, :]
    result = tl.minimum(tl.maximum(total >> BITS, 0), 255).to(tl.uint8)
    tl.store(out + (line * out_size * values)[:, None] + at[None, :], result, mask=inside)


def _here(images: torch.Tensor, *_: object, **__: object) -> bool:
    return runs_here(images)


@resize_bicubic.kernel("triton", when=_here)
def resize_bicubic_triton(images: torch.Tensor, out_height: int, out_width: int, rows_first: bool) -> torch.Tensor:
    return _resized(images, out_height, out_width, rows_first, "bicubic")


@resize_bilinear.kernel("triton", when=_here)
def resize_bilinear_triton(images: torch.Tensor, out_height: int, out_width: int, rows_first: bool) -> torch.Tensor:
    return _resized(images, out_height, out_width, rows_first, "bilinear")


def _resized(images: torch.Tensor, out_height: int, out_width: int, rows_first: bool, resample: Resample) -> torch.Tensor:
    check_images(images)
    passes = [(2, out_width), (1, out_height)]  # (axis, its new size)
    if rows_first:
        passes.reverse()
    for axis, out_size in passes:
        if images.shape[axis] != out_size:
            images = _resized_axis(images.contiguous(), axis, out_size, resample)
    return images


def _resized_axis(images: torch.Tensor, axis: int, out_size: int, resample: Resample) -> torch.Tensor:
    indices, weights = taps_on_device(images.shape[axis], out_size, images.device, resample)
    out = images.new_empty([*images.shape[:axis], out_size, *images.shape[axis + 1 :]])
    lines = images.shape[:axis].numel()
    values = images.shape[axis + 1 :].numel()
    grid = (triton.cdiv(lines, _LINES), triton.cdiv(out_size * values, _VALUES))
    _resize_pass[grid](
        images, out, indices, weights, lines, images.shape[axis], out_size, values, len(indices), WEIGHT_BITS, _LINES, _VALUES
    )
    return out


@triton.jit(do_not_specialize=["rows", "columns", "width", "frame_pixels"])
def _cut(
    images, table, out, rows, columns, width, frame_pixels, features,
    patch: tl.constexpr, merge: tl.constexpr, TIME: tl.constexpr, FRAMES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One program per patch. TIME: frames in a patch's features; FRAMES: how many of them the source has (1: a still)."""
    number = tl.program_id(0).to(tl.int64)
    group = number // (rows * columns)
    inside_frame = number % (rows * columns)
    block = inside_frame // (merge * merge)
    offset = inside_frame % (merge * merge)
    across = columns // merge
    row = block // across * merge + offset // merge
    column = block % across * merge + offset % merge
    feature = tl.arange(0, BLOCK)
    known = feature < features
    channel = feature // (TIME * patch * patch)
    time = feature // (patch * patch) % TIME % FRAMES
    y = row * patch + feature // patch % patch
    x = column * patch + feature % patch
    pixel = ((group * FRAMES + time) * frame_pixels + y * width + x) * 3 + channel
    value = tl.load(images + pixel, mask=known, other=0).to(tl.int32)
    tl.store(out + number * features + feature, tl.load(table + channel * 256 + value, mask=known), mask=known)


@patchify.kernel("triton", when=_here)
def patchify_triton(
    images: torch.Tensor,
    mean: tuple[float, float, float],
    std: tuple[float, float, float],
    patch_size: int,
    temporal_patch_size: int,
    merge_size: int,
    compact: bool,
    dtype: torch.dtype,
) -> torch.Tensor:
    frames, height, width, _ = images.shape
    time = check_patches(images, patch_size, temporal_patch_size, merge_size, compact)
    rows, columns = height // patch_size, width // patch_size
    in_features = 1 if compact else temporal_patch_size
    features = 3 * in_features * patch_size**2
    out = torch.empty(frames // time * rows * columns, features, dtype=dtype, device=images.device)
    table = normalised_values(mean, std, images.device, dtype)
    _cut[(len(out),)](
        images.contiguous(), table, out, rows, columns, width, height * width, features,
        patch_size, merge_size, in_features, time, next_power_of_2(features),
    )  # fmt: skip
    return out
