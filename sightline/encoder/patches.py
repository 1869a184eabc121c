"""The single place where pixels move to the device: upload as uint8, make the views of each picture, cut into patches.

Patches of an item: view after view, of each the tiles row by row, for each temporal group of a video.
"""

import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from sightline.encoder.gpu_decode import GpuDecoder
from sightline.encoder.tiles import canvases, cut_tiles
from sightline.ops.pixels import patchify
from sightline.ops.thumbnail import thumbnail_patches
from sightline.spec import PatchSpec
from sightline.timing import StageClock
from sightline.types import MediaItem, View

# Frames of a video, and stills that the GPU decodes, are resized in groups of about this many bytes, so that a long clip never
# lies whole on the device as full-size pixels (768 frames of 1080p would be 4.8 GB).
GROUP_BYTES = 256 * 1024 * 1024


def make_patches(
    pixels: NDArray[np.uint8],
    item: MediaItem,
    spec: PatchSpec,
    device: torch.device,
    dtype: torch.dtype,
    compact: bool = True,
) -> torch.Tensor:
    """dtype [item.patches, features] on the device; see patchify for the order of rows and features.

    pixels [frames, height, width, 3], of the source's size or, where there is one view, of the picture's size in it. compact
    leaves the repetition of a still in time out, for a patch embedding with folded weights. A video has no repetition, so its
    patches are always full.
    """
    if item.ref.kind == "image":
        (patches,) = cut_stills(upload(pixels, device), item, spec, dtype, compact)
    else:
        together = _groups(pixels, item, spec.temporal_patch_size)
        groups = [_cut_frames(upload(frames, device), item, spec, dtype) for frames in together]
        patches = _joined([group[view] for view in range(len(item.views)) for group in groups])
    assert patches.shape[0] == item.patches, (patches.shape, item.grids)
    return patches


def _groups(pixels: NDArray[np.uint8], item: MediaItem, step: int) -> Iterator[NDArray[np.uint8]]:
    """Frames that are on the device together: whole temporal patches of them."""
    at_once = max(1, GROUP_BYTES // (_frame_bytes(item, pixels.shape[1:3]) * step)) * step
    for first in range(0, len(pixels), at_once):
        yield pixels[first : first + at_once]


def _cut_frames(frames: torch.Tensor, item: MediaItem, spec: PatchSpec, dtype: torch.dtype) -> list[torch.Tensor]:
    """Patches of some of a video's frames, uint8 [frames, height, width, 3] on the device: a tensor for each view."""
    time, found = spec.temporal_patch_size, []
    for view, canvas in zip(item.views, canvases(frames, item.views, spec.mean), strict=True):
        assert view.reduced is None, "views of videos are not reduced"
        tiles = _whole_patches(cut_tiles(canvas, view), spec.patch_size)
        tiles = tiles.reshape(len(frames), -1, *tiles.shape[2:])
        if tiles.shape[1] > 1:  # a tile is a clip of its own: the frames of a temporal patch side by side
            tiles = tiles.unflatten(0, (-1, time)).transpose(1, 2)
        images = tiles.flatten(0, -4)
        found.append(patchify(images, spec.mean, spec.std, spec.patch_size, time, spec.merge_size, False, dtype))
    return found


def make_patches_of_files(
    items: Sequence[MediaItem],
    spec: PatchSpec,
    decoder: GpuDecoder,
    dtype: torch.dtype,
    compact: bool = True,
    clock: StageClock | None = None,
) -> list[torch.Tensor | None]:
    """As make_patches, of stills that the decoder takes, together. None where it could not decode one: that is for the CPU.

    Nothing but the library waits for the device, so the stages of `clock` are what the host did: entropy decoding and launches.
    """
    clock = clock or StageClock()
    made: list[torch.Tensor | None] = [None] * len(items)
    for number, group in enumerate(_file_groups(items)):
        with clock.stage("decode"):
            if number:  # the device may not have come to the pixels before, and keeps them until then
                decoder.wait()
            batches = decoder.decode([items[index].ref for index in group])
        with clock.stage("preprocess"):
            for batch in batches:
                indices = [group[number] for number in batch.indices]
                cut_all = cut_stills(batch.frames, items[indices[0]], spec, dtype, compact)
                for index, patches in zip(indices, cut_all, strict=True):
                    made[index] = patches
    return made


def cut_stills(
    frames: torch.Tensor, item: MediaItem, spec: PatchSpec, dtype: torch.dtype, compact: bool
) -> tuple[torch.Tensor, ...]:
    """Patches of stills of one size, uint8 [stills, height, width, 3], in as many launches as for one.

    Patches go by rows of blocks, so those of pictures below one another, or of tiles, taken as a single tall one, are theirs in
    turn.
    """
    found = []
    for view, canvas in zip(item.views, canvases(frames, item.views, spec.mean), strict=True):
        patches = _cut_canvas(canvas, view, spec, dtype, compact)
        found.append(patches.split(len(patches) // len(frames)))
    return tuple(_joined(views) for views in zip(*found, strict=True))


def _cut_canvas(canvas: torch.Tensor, view: View, spec: PatchSpec, dtype: torch.dtype, compact: bool) -> torch.Tensor:
    """[stills, canvas height, canvas width, 3] to patches of each in turn."""
    if view.reduced is not None:
        assert spec.merge_size == spec.temporal_patch_size == 1, "patches of a reduced view go row by row"
        return thumbnail_patches(canvas, *view.reduced, spec.mean, spec.std, spec.patch_size, dtype)
    tiles = _whole_patches(cut_tiles(canvas, view), spec.patch_size)
    tall = tiles.reshape(1, -1, *tiles.shape[3:])
    return patchify(tall, spec.mean, spec.std, spec.patch_size, spec.temporal_patch_size, spec.merge_size, compact, dtype)


def _whole_patches(tiles: torch.Tensor, patch_size: int) -> torch.Tensor:
    """[canvases, tiles, height, width, 3] without what is left of a tile behind its last whole patches."""
    height, width = tiles.shape[2:4]
    return tiles[:, :, : height - height % patch_size, : width - width % patch_size]


def _joined(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(tuple(parts))


def _file_groups(items: Sequence[MediaItem]) -> Iterator[list[int]]:
    """Places of items whose pixels are on the device together."""
    group: list[int] = []
    room = GROUP_BYTES
    for index, item in enumerate(items):
        size = _frame_bytes(item, (item.ref.header.height, item.ref.header.width))
        if group and size > room:
            yield group
            group, room = [], GROUP_BYTES
        group.append(index)
        room -= size
    if group:
        yield group


def _frame_bytes(item: MediaItem, size: tuple[int, ...]) -> int:
    """Of a picture of this size, or of all canvases of the largest view that is made of it."""
    return 3 * max(math.prod(size), *map(_canvas_pixels, item.views))


def _canvas_pixels(view: View) -> int:
    """Of the view's canvases, or of those that it is made of."""
    own = math.prod(view.canvas)
    return own if view.of is None else max(own * view.of.tiles, _canvas_pixels(view.of))


def upload(frames: NDArray[np.uint8], device: torch.device) -> torch.Tensor:
    """uint8 [frames, height, width, 3] on the device; by way of page-locked memory to a GPU, so that the copy can overlap."""
    staging = torch.empty(frames.shape, dtype=torch.uint8, pin_memory=device.type == "cuda")
    staging.numpy()[:] = frames
    return staging.to(device, non_blocking=True)
