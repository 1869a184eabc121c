"""Encoded bytes to uint8 RGB, on the CPU, exactly as transformers' loaders do."""

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFile, ImageOps
from PIL.TiffImagePlugin import TiffImageFile

from sightline.errors import MediaError
from sightline.media.ffmpeg import ffmpeg_errors, open_video, rgb_converter, video_stream
from sightline.media.jpeg import START, check_scans
from sightline.media.pillow import open_for_pixels, pillow_errors
from sightline.types import ImageHeader, MediaRef, VideoHeader

_METHODS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def decode_image(ref: MediaRef) -> NDArray[np.uint8]:
    """[height, width, 3] in display orientation. The array may be read-only."""
    header = ref.header
    assert isinstance(header, ImageHeader)
    if header.format == "RGB":  # raw pixels
        return np.frombuffer(ref.data, np.uint8).reshape(header.height, header.width, 3)
    with pillow_errors(ref.source):
        if ref.data.startswith(START):
            check_scans(ref.data, ref.source)
        image = _turned(open_for_pixels(ref.data), header.orientation).convert("RGB")
        pixels = np.asarray(image)
    if pixels.shape != (header.height, header.width, 3):
        raise MediaError(
            f"Image {ref.source} cannot be used: it decodes to {image.width}x{image.height} pixels, "
            f"but its header says {header.width}x{header.height}."
        )
    return pixels


def _turned(image: ImageFile.ImageFile, orientation: int) -> Image.Image:
    """What ImageOps.exif_transpose gives, without the EXIF data that it writes anew: seconds per megabyte of it."""
    if isinstance(image, TiffImageFile):  # turns itself when it is loaded, if a tag says so; XMP is left to us
        return ImageOps.exif_transpose(image)
    return image.transpose(_METHODS[orientation]) if orientation in _METHODS else image


def decode_video(ref: MediaRef, frame_indices: Sequence[int]) -> NDArray[np.uint8]:
    """[frames, height, width, 3] for ascending indices, repeats allowed."""
    assert isinstance(ref.header, VideoHeader)
    frames = np.empty((len(frame_indices), ref.header.height, ref.header.width, 3), np.uint8)
    for place, frame in enumerate(video_frames(ref, frame_indices)):
        frames[place] = frame
    return frames


def video_frames(ref: MediaRef, frame_indices: Sequence[int]) -> Iterator[NDArray[np.uint8]]:
    """Yields one [height, width, 3] per index, in one pass that ends with the last index.

    Decoding always starts at the first frame: seeking needs an index that many files lack, and lands on the wrong frame in
    files with wrong timestamps.
    """
    header = ref.header
    assert isinstance(header, VideoHeader)
    assert frame_indices and frame_indices[0] >= 0 and all(a <= b for a, b in pairwise(frame_indices))
    place = decoded = 0
    with ffmpeg_errors(ref.source), open_video(ref.data, ref.source) as container:
        stream = video_stream(container, ref.source)
        stream.thread_type = "AUTO"
        to_rgb = rgb_converter()
        for frame in container.decode(stream):
            if frame_indices[place] == decoded:
                if (frame.width, frame.height) != (header.width, header.height):
                    raise MediaError(
                        f"Video {ref.source} cannot be used: frame {decoded} has {frame.width}x{frame.height} pixels, "
                        f"but the header says {header.width}x{header.height}."
                    )
                pixels = to_rgb(frame).astype(np.uint8, copy=False)
                while place < len(frame_indices) and frame_indices[place] == decoded:
                    yield pixels
                    place += 1
                if place == len(frame_indices):
                    return
            decoded += 1
    raise MediaError(
        f"Video {ref.source} cannot be used: it promises {header.frame_count} frames and only {decoded} can be decoded."
    )
