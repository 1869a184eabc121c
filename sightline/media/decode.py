"""Encoded bytes to uint8 RGB, on the CPU, exactly as transformers' loaders do."""

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFile, ImageOps
from PIL.TiffImagePlugin import TiffImageFile

from sightline.errors import MediaError
from sightline.media.decoder_errors import Cancelled, check_cancelled, never
from sightline.media.ffmpeg import ffmpeg_errors, open_video, rgb_converter, video_stream
from sightline.media.frames import unpack_frames
from sightline.media.jpeg import START, count_scans
from sightline.media.pillow import open_for_pixels, pillow_errors
from sightline.media.png_pixels import png_pixels
from sightline.types import FRAMES, ImageHeader, MediaRef, VideoHeader

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.video.frame import VideoFrame
    from av.video.stream import VideoStream

_STRIP_PIXELS = 1 << 20  # fits a cache: twice as fast as the whole at once
_METHODS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def decode_image(ref: MediaRef, cancelled: Cancelled = never) -> NDArray[np.uint8]:
    """[height, width, 3] in display orientation, maybe read-only. Raises DecodeCancelled once `cancelled` says so."""
    header = ref.header
    assert isinstance(header, ImageHeader)
    if header.format == "RGB":  # raw pixels
        return np.frombuffer(ref.data, np.uint8).reshape(header.height, header.width, 3)
    with pillow_errors(ref.source, _needed(header)):
        opened = _opened(ref, cancelled)
        pixels = png_pixels(opened, ref.data, cancelled)
        if pixels is None:
            return _pixels(_upright(opened, ref, header), cancelled)
        if header.orientation != 1:
            return _pixels(_upright(Image.fromarray(pixels), ref, header), cancelled)
        _check_size(opened, ref, header)
        return pixels


def decode_image_resized(ref: MediaRef, height: int, width: int) -> NDArray[np.uint8]:
    """[height, width, 3]: what Pillow's bicubic filter makes of the decoded image, which is never an array of its own."""
    header = ref.header
    assert isinstance(header, ImageHeader) and header.format != "RGB"
    with pillow_errors(ref.source, _needed(header)):
        upright = _upright(_opened(ref, never), ref, header)
        return np.asarray(upright.resize((width, height), Image.Resampling.BICUBIC))


def _needed(header: ImageHeader | VideoHeader) -> int:
    """Bytes of a picture or a frame: a decoder's pixels, in 4 each, and an array of them."""
    return 7 * header.width * header.height


def _opened(ref: MediaRef, cancelled: Cancelled) -> ImageFile.ImageFile:
    if ref.data.startswith(START):
        count_scans(ref.data, ref.source)
    return open_for_pixels(ref.data, cancelled)


def _upright(image: Image.Image, ref: MediaRef, header: ImageHeader) -> Image.Image:
    """The image in RGB and in display orientation, of the size that its header says."""
    turned = _turned(image, header.orientation)
    turned.load()  # the size and the mode of some formats are final only then
    rgb = turned if turned.mode == "RGB" else turned.convert("RGB")
    _check_size(rgb, ref, header)
    return rgb


def _check_size(image: Image.Image, ref: MediaRef, header: ImageHeader) -> None:
    if image.size != (header.width, header.height):
        raise MediaError(
            f"Image {ref.source} cannot be used: it decodes to {image.width}x{image.height} pixels, "
            f"but its header says {header.width}x{header.height}."
        )


def _pixels(image: Image.Image, cancelled: Cancelled) -> NDArray[np.uint8]:
    """[height, width, 3]. A large one is copied in strips: Pillow's way to an array has the whole twice for a moment."""
    rows = max(_STRIP_PIXELS // image.width, 1)
    if rows >= image.height:
        return np.asarray(image)
    pixels = np.empty((image.height, image.width, 3), np.uint8)
    for top in range(0, image.height, rows):
        check_cancelled(cancelled)
        bottom = min(top + rows, image.height)
        pixels[top:bottom] = np.asarray(image.crop((0, top, image.width, bottom)))
    return pixels


def _turned(image: Image.Image, orientation: int) -> Image.Image:
    """What ImageOps.exif_transpose gives, without the EXIF data that it writes anew: seconds per megabyte of it."""
    if isinstance(image, TiffImageFile):  # turns itself when it is loaded, if a tag says so; XMP is left to us
        return ImageOps.exif_transpose(image)
    return image.transpose(_METHODS[orientation]) if orientation in _METHODS else image


def decode_video(ref: MediaRef, frame_indices: Sequence[int]) -> NDArray[np.uint8]:
    """[frames, height, width, 3] for ascending indices, repeats allowed."""
    assert isinstance(ref.header, VideoHeader)
    frames = np.empty((len(frame_indices), ref.header.height, ref.header.width, 3), np.uint8)
    for position, frame in enumerate(video_frames(ref, frame_indices)):
        frames[position] = frame
    return frames


def video_frames(ref: MediaRef, frame_indices: Sequence[int], cancelled: Cancelled = never) -> Iterator[NDArray[np.uint8]]:
    """Yields one [height, width, 3] per index, in one pass that ends with the last index.

    Decoding always starts at the first frame: seeking needs an index that many files lack, and lands on the wrong frame in
    files with wrong timestamps. Raises DecodeCancelled, between packets, once `cancelled` says so.
    """
    header = ref.header
    assert isinstance(header, VideoHeader)
    assert frame_indices and frame_indices[0] >= 0 and all(a <= b for a, b in pairwise(frame_indices))
    if header.format == FRAMES:
        yield from _listed_frames(ref, frame_indices, cancelled)
        return
    position = decoded = 0
    with ffmpeg_errors(ref.source, _needed(header)), open_video(ref.data, ref.source) as container:
        stream = video_stream(container, ref.source)
        stream.thread_type = "AUTO"
        to_rgb = rgb_converter()
        for frame in _frames(container, stream, cancelled):
            if frame_indices[position] == decoded:
                if (frame.width, frame.height) != (header.width, header.height):
                    raise MediaError(
                        f"Video {ref.source} cannot be used: frame {decoded} has {frame.width}x{frame.height} pixels, "
                        f"but the header says {header.width}x{header.height}."
                    )
                pixels = to_rgb(frame).astype(np.uint8, copy=False)
                while position < len(frame_indices) and frame_indices[position] == decoded:
                    yield pixels
                    position += 1
                if position == len(frame_indices):
                    return
            decoded += 1
    raise MediaError(
        f"Video {ref.source} cannot be used: it promises {header.frame_count} frames and only {decoded} can be decoded."
    )


def _listed_frames(ref: MediaRef, frame_indices: Sequence[int], cancelled: Cancelled) -> Iterator[NDArray[np.uint8]]:
    wanted = Counter(frame_indices)
    for number, still in enumerate(unpack_frames(ref)):
        if number in wanted:
            pixels = decode_image(still, cancelled)
            yield from itertools.repeat(pixels, wanted[number])


def _frames(container: "InputContainer", stream: "VideoStream", cancelled: Cancelled) -> "Iterator[VideoFrame]":
    for packet in container.demux(stream):
        check_cancelled(cancelled)
        yield from packet.decode()
