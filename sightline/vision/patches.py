"""The single place where pixels move to the device: decode, upload as uint8, resize, cut into patches."""

import itertools
from collections.abc import Iterator, Sequence
from concurrent.futures import Future

import numpy as np
import torch
from numpy.typing import NDArray

from sightline.media.decode import decode_image, video_frames
from sightline.media.pillow import rows_first
from sightline.ops.pixels import patchify, resize_bicubic
from sightline.spec import ImageSpec, VideoSpec
from sightline.timing import StageClock
from sightline.types import MediaItem
from sightline.vision.gpu_decode import GpuDecoder
from sightline.vision.pixel_room import PixelRoom

# Frames of a video, and stills that the GPU decodes, are decoded and resized in groups of about this many bytes, so that a long
# clip never lies whole in memory as full-size pixels (768 frames of 1080p would be 4.8 GB). Nor do threads bring more at once.
GROUP_BYTES = 256 * 1024 * 1024


def make_patches(
    item: MediaItem,
    spec: ImageSpec | VideoSpec,
    device: torch.device,
    dtype: torch.dtype,
    compact: bool = True,
    clock: StageClock | None = None,
    decoded: "Future[NDArray[np.uint8]] | None" = None,
    room: PixelRoom | None = None,
) -> torch.Tensor:
    """dtype [item.patches, features] on the device; see patchify for the order of rows and features.

    compact leaves the repetition of a still in time out, for a patch embedding with folded weights. A video has no repetition,
    so its patches are always full. `clock` is told how long decoding took, and how long the rest (on a GPU: its launch).
    `decoded` are the pixels of a still whose decoding was begun elsewhere. Who makes patches in several threads on one stream
    of the device gives them one `room`.
    """
    clock, room = clock or StageClock(), room or PixelRoom(GROUP_BYTES)
    groups = []
    pixel_groups = _pixel_groups(item, spec, decoded)
    while True:
        with clock.stage("decode"):
            frames = next(pixel_groups, None)
        if frames is None:
            break
        with clock.stage("preprocess"), room.taken(sum(frame.nbytes for frame in frames)):
            groups.append(cut(upload(frames, device), item, spec, dtype, compact))
    patches = groups[0] if len(groups) == 1 else torch.cat(groups)
    assert patches.shape[0] == item.patches
    return patches


def cut(frames: torch.Tensor, item: MediaItem, spec: ImageSpec | VideoSpec, dtype: torch.dtype, compact: bool) -> torch.Tensor:
    """Patches of some of an item's frames, uint8 [frames, height, width, 3] on the device."""
    return patchify(
        _resized(frames, item),
        spec.mean,
        spec.std,
        spec.patch_size,
        spec.temporal_patch_size,
        spec.merge_size,
        compact and item.ref.kind == "image",
        dtype,
    )


def make_patches_of_jpegs(
    items: Sequence[MediaItem],
    spec: ImageSpec,
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
    for number, group in enumerate(_jpeg_groups(items)):
        with clock.stage("decode"):
            if number:  # the device may not have come to the pixels before, and keeps them until then
                decoder.wait()
            batches = decoder.decode([items[place].ref for place in group])
        with clock.stage("preprocess"):
            for batch in batches:
                places = [group[number] for number in batch.places]
                cut_all = cut_stills(batch.frames, items[places[0]], spec, dtype, compact)
                for place, patches in zip(places, cut_all, strict=True):
                    made[place] = patches
    return made


def cut_stills(
    frames: torch.Tensor, item: MediaItem, spec: ImageSpec, dtype: torch.dtype, compact: bool
) -> tuple[torch.Tensor, ...]:
    """Patches of stills of one size, uint8 [stills, height, width, 3], in as many launches as for one.

    Patches go by rows of blocks, so those of pictures below one another, taken as a single tall one, are theirs in turn.
    """
    images = _resized(frames, item)
    tall = images.reshape(1, -1, *images.shape[2:])
    sizes = spec.patch_size, spec.temporal_patch_size, spec.merge_size
    patches: tuple[torch.Tensor, ...] = patchify(tall, spec.mean, spec.std, *sizes, compact, dtype).split(item.patches)
    return patches


def _resized(frames: torch.Tensor, item: MediaItem) -> torch.Tensor:
    height, width = item.resized
    return resize_bicubic(frames, height, width, rows_first(frames.shape[1], frames.shape[2], height, width))


def _jpeg_groups(items: Sequence[MediaItem]) -> Iterator[list[int]]:
    """Places of items whose pixels are on the device together."""
    group: list[int] = []
    room = GROUP_BYTES
    for place, item in enumerate(items):
        size = 3 * item.ref.header.height * item.ref.header.width
        if group and size > room:
            yield group
            group, room = [], GROUP_BYTES
        group.append(place)
        room -= size
    if group:
        yield group


def _pixel_groups(
    item: MediaItem, spec: ImageSpec | VideoSpec, decoded: "Future[NDArray[np.uint8]] | None"
) -> Iterator[list[NDArray[np.uint8]]]:
    """The frames to upload together, each [height, width, 3]: a still alone, a video in whole temporal patches."""
    if item.ref.kind == "image":
        yield [decode_image(item.ref) if decoded is None else decoded.result()]
        return
    header = item.ref.header
    step = spec.temporal_patch_size
    at_once = max(1, GROUP_BYTES // (3 * header.height * header.width * step)) * step
    frames = video_frames(item.ref, item.frame_indices)
    while group := list(itertools.islice(frames, at_once)):
        yield group


def upload(frames: list[NDArray[np.uint8]], device: torch.device) -> torch.Tensor:
    """uint8 [frames, height, width, 3] on the device; by way of page-locked memory to a GPU, so that the copy can overlap."""
    staging = torch.empty((len(frames), *frames[0].shape), dtype=torch.uint8, pin_memory=device.type == "cuda")
    for place, frame in zip(staging.numpy(), frames, strict=True):
        place[:] = frame
    return staging.to(device, non_blocking=True)
