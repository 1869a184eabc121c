"""From a header to everything that follows from it, and the key of the embedding."""

import hashlib
from collections.abc import Sequence

from sightline.media.pillow import SOMETIMES_ROWS_FIRST
from sightline.spec import PatchSpec, ProcessorSpec
from sightline.types import MediaItem, MediaLayout, MediaRef, Resample, Size, VideoHeader, View


def item_of(ref: MediaRef, processor: ProcessorSpec) -> MediaItem:
    layout = processor.layout(ref.header)
    return MediaItem(
        ref=ref,
        # the digest has 32 bytes, so nothing can shift
        key=hashlib.sha256(ref.digest + f"{ref.kind} {layout.fingerprint}".encode()).digest(),
        views=layout.views,
        grids=layout.grids,
        frame_indices=layout.frame_indices,
        frame_times=layout.frame_times,
        rows=layout.rows,
    )


def image_layout(spec: PatchSpec, size: Size) -> MediaLayout:
    """One view of one tile, an embedding row for each merge x merge patches."""
    return _layout(spec, size, 1, fingerprint(spec, size))


def video_layout(spec: PatchSpec, size: Size, indices: Sequence[int], header: VideoHeader) -> MediaLayout:
    """As an image, for each temporal patch of the frames, the last of which is repeated until the patches are full."""
    padded = pad_frames(indices, spec.temporal_patch_size)
    times = tuple(index / header.fps for index in padded)
    made_of = f"{fingerprint(spec, size)} indices={padded!r} times={times!r}"
    return _layout(spec, size, len(padded) // spec.temporal_patch_size, made_of, padded, times)


def pad_frames(indices: Sequence[int], multiple: int) -> tuple[int, ...]:
    return (*indices, *[indices[-1]] * (-len(indices) % multiple))


def fingerprint(spec: PatchSpec, size: Size, resample: Resample = "bicubic") -> str:
    """All that decides what the patches of given bytes are, in one line. A change of how pixels are made belongs here."""
    return (
        f"patch={spec.patch_size} temporal={spec.temporal_patch_size} merge={spec.merge_size} "
        f"pixels={spec.min_pixels}..{spec.max_pixels} size={size[0]}x{size[1]} mean={spec.mean!r} std={spec.std!r} "
        f"resample={resample}{'13' if SOMETIMES_ROWS_FIRST else ''}"
    )


def _layout(
    spec: PatchSpec, size: Size, groups: int, made_of: str, indices: tuple[int, ...] = (), times: tuple[float, ...] = ()
) -> MediaLayout:
    grid = (groups, size[0] // spec.patch_size, size[1] // spec.patch_size)
    rows = grid[0] * grid[1] * grid[2] // spec.merge_size**2
    return MediaLayout((View.whole(size),), (grid,), rows, made_of, indices, times)
