"""From a header to everything that follows from it: resized size, patch grid, frames, rows, and the key of the embedding."""

import hashlib

from sightline.media.pillow import SOMETIMES_ROWS_FIRST
from sightline.media.sampling import sample_frames
from sightline.media.sizes import image_size, video_size
from sightline.spec import ImageSpec, VideoSpec
from sightline.types import ImageHeader, MediaItem, MediaRef, VideoHeader


def make_image_item(ref: MediaRef, spec: ImageSpec) -> MediaItem:
    assert isinstance(ref.header, ImageHeader)
    height, width = image_size(spec, ref.header)
    grid = (1, height // spec.patch_size, width // spec.patch_size)
    return MediaItem(
        ref=ref,
        key=_key(ref, f"image {_processing(spec, height, width)}"),
        grid=grid,
        resized=(height, width),
        frame_indices=(),
        frame_times=(),
        rows=grid[1] * grid[2] // spec.merge_size**2,
    )


def make_video_item(ref: MediaRef, spec: VideoSpec) -> MediaItem:
    assert isinstance(ref.header, VideoHeader)
    sample = sample_frames(spec, ref.header)
    height, width = video_size(spec, ref.header, sample.count)
    grid = (len(sample.indices) // spec.temporal_patch_size, height // spec.patch_size, width // spec.patch_size)
    sampling = f"style={spec.style} indices={sample.indices!r} times={sample.times!r}"
    return MediaItem(
        ref=ref,
        key=_key(ref, f"video {_processing(spec, height, width)} {sampling}"),
        grid=grid,
        resized=(height, width),
        frame_indices=sample.indices,
        frame_times=sample.times,
        rows=grid[0] * grid[1] * grid[2] // spec.merge_size**2,
    )


def _processing(spec: ImageSpec | VideoSpec, height: int, width: int) -> str:
    """All that decides what the patches of given bytes are, in one line. A change of how pixels are made belongs here."""
    return (
        f"patch={spec.patch_size} temporal={spec.temporal_patch_size} merge={spec.merge_size} "
        f"pixels={spec.min_pixels}..{spec.max_pixels} size={height}x{width} mean={spec.mean!r} std={spec.std!r} "
        f"resample=bicubic{'13' if SOMETIMES_ROWS_FIRST else ''} decoder=cpu"
    )


def _key(ref: MediaRef, fingerprint: str) -> bytes:
    return hashlib.sha256(ref.digest + fingerprint.encode()).digest()  # the digest has 32 bytes, so nothing can shift
