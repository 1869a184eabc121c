"""Pixels of ordinary PNG files, several times as fast as Pillow makes them, and bit for bit the same.

A PNG is deflated rows, each behind a byte that names its filter. Pillow undoes filters a byte at a time, which takes it
longest; ffmpeg does it with vector instructions, but inflates slowly. So zlib-ng inflates, and ffmpeg is given the result as
a PNG that is only stored:

    IDAT … IDAT ──zlib-ng──► filtered rows ──stored──► PNG of bytes ──ffmpeg──► rows of samples as the file has them

A filter works on bytes and looks back by those of a pixel. To ffmpeg a row is therefore pixels of so many bytes, whatever its
samples are; what they mean stays for Pillow to say (`_in_rgb`), from bytes that are the same as those it would have made.

Whatever is not plain is left to Pillow, whose pixels or whose error count: interlaced and animated files, chunks behind the
pixels, files that were cut off, damaged or hold more than their rows, and every machine without zlib-ng.
"""

import contextlib
import struct
from itertools import takewhile
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFile
from PIL.PngImagePlugin import PngImageFile

from sightline.media.decoder_errors import Cancelled, check_cancelled
from sightline.media.png import CHANNELS, SIGNATURE, PngChunk, chunks, written


def _find_zlib_ng() -> Any:
    try:
        from zlib_ng import zlib_ng
    except ImportError:  # no build of it for this platform
        return None
    return zlib_ng


zlib_ng = _find_zlib_ng()
LEAST_BYTES = 1 << 16  # of rows; with fewer a decoder's context takes longer than their filters
MOST_BYTES = 1 << 26  # nothing here can be cancelled for longer than these take, a tenth of a second
_IHDR = struct.Struct(">IIBBBBB")  # width, height, bits of a sample, colour type, compression, filters, interlacing
_LAST_FILTER = 4
_STRIP_PIXELS = 1 << 18
_ANIMATION = (b"acTL", b"fcTL", b"fdAT")
# By bytes that a filter looks back: bits and colour type of a PNG whose pixels have so many.
_KINDS = {1: (8, 0), 2: (8, 4), 3: (8, 2), 4: (8, 6), 6: (16, 2), 8: (16, 6)}
_END = written(b"IEND", b"")
_BLOCK = 0xFFFF  # bytes of a stored block
_BLOCK_START = np.frombuffer(struct.pack("<BHH", 0, _BLOCK, 0), np.uint8)


def get_ready() -> None:
    """Loads what the first PNG would have to wait for: a quarter of a second for all of ffmpeg."""
    if zlib_ng is not None:
        import av  # noqa: F401


def png_pixels(image: ImageFile.ImageFile, data: bytes, cancelled: Cancelled) -> NDArray[np.uint8] | None:
    """[height, width, 3], not turned, of a file that Pillow has opened and not yet decoded; None: it is for Pillow."""
    if zlib_ng is None or not isinstance(image, PngImageFile):
        return None
    rows = _rows(image, data, cancelled)
    return None if rows is None else _in_rgb(image, rows)


def _rows(image: PngImageFile, data: bytes, cancelled: Cancelled) -> NDArray[np.uint8] | None:
    """[height, bytes of a row], of samples as the file has them."""
    found = _plain_pixels(image, data)
    if found is None:
        return None
    (width, height, bits, colour, *_), parts = found
    row, back = -(-width * bits * CHANNELS[colour] // 8), max(bits * CHANNELS[colour] // 8, 1)
    if not LEAST_BYTES <= row * height <= MOST_BYTES:
        return None
    check_cancelled(cancelled)
    filtered = _inflated(parts[0] if len(parts) == 1 else b"".join(parts), (row + 1) * height)
    if filtered is None or np.frombuffer(filtered, np.uint8)[:: row + 1].max() > _LAST_FILTER:
        return None
    check_cancelled(cancelled)
    stored = _stored_png(filtered, _IHDR.pack(row // back, height, *_KINDS[back], 0, 0, 0))
    del filtered  # of these bytes there are three copies at a time, see cost.py
    return _unfiltered(stored, height, row)


def _in_rgb(image: ImageFile.ImageFile, rows: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Pillow's own reading of samples and palette, in strips that fit a cache."""
    (width, height), samples = image.size, image.tile[0].args
    if samples == "RGB":
        return rows.reshape(height, width, 3)
    pixels = np.empty((height, width, 3), np.uint8)
    step = max(_STRIP_PIXELS // width, 1)
    for top in range(0, height, step):
        some = rows[top : top + step]
        strip = Image.frombuffer(image.mode, (width, len(some)), some, "raw", samples, 0, 1)
        if image.palette is not None:
            strip.palette = image.palette.copy()
        pixels[top : top + step] = np.asarray(strip.convert("RGB"))
    return pixels


def _plain_pixels(image: PngImageFile, data: bytes) -> tuple[tuple[int, ...], list[memoryview]] | None:
    """IHDR and the payloads of all IDAT, if nothing about the file is unusual."""
    walked = list(chunks(data))
    before = list(takewhile(lambda chunk: chunk.name != b"IDAT", walked))
    pixels = list(takewhile(lambda chunk: chunk.name == b"IDAT", walked[len(before) :]))
    if not pixels or [chunk.name for chunk in before].count(b"IHDR") != 1 or not _ends_well(walked, len(before + pixels), data):
        return None
    if before[0].name != b"IHDR" or before[0].end - before[0].start != _IHDR.size:
        return None
    if any(chunk.name in _ANIMATION for chunk in before):
        return None
    header = _IHDR.unpack_from(data, len(SIGNATURE) + 8)
    tiles = [(tile.codec_name, tile.extents, tile.offset) for tile in image.tile]
    if tiles != [("zip", (0, 0, *header[:2]), pixels[0].start)] or any(header[4:]):
        return None
    return header, [memoryview(data)[chunk.start : chunk.end] for chunk in pixels]


def _ends_well(walked: list[PngChunk], count: int, data: bytes) -> bool:
    """Whether an IEND, and nothing before it, follows so many chunks."""
    return len(walked) > count and walked[count].name == b"IEND" and walked[count].end + 4 <= len(data)


def _inflated(payload: bytes | memoryview, size: int) -> bytes | None:
    """Exactly so many bytes, never more in memory, with a checksum that is right; else None.

    zlib-ng is what Pillow has, too. libdeflate is faster still, but reads codes that zlib refuses.
    """
    inflater = zlib_ng.decompressobj()
    try:
        found: bytes = inflater.decompress(payload, size)
        left = inflater.decompress(inflater.unconsumed_tail, 1)  # the end and the checksum, and no byte
    except zlib_ng.error:
        return None
    return found if len(found) == size and not left and inflater.eof and not inflater.unused_data else None


def _unfiltered(stored: NDArray[np.uint8], height: int, row: int) -> NDArray[np.uint8] | None:
    """[height, row]; None where ffmpeg does not take a picture of these sides."""
    import av

    with contextlib.suppress(av.error.FFmpegError):
        (frame,) = av.CodecContext.create("png", "r").decode(av.Packet(cast(bytes, stored)))  # any buffer will do
        plane = frame.planes[0]
        lines = np.frombuffer(cast(bytes, plane), np.uint8, height * plane.line_size).reshape(height, plane.line_size)
        return np.ascontiguousarray(lines[:, :row])
    return None


def _stored_png(filtered: bytes, header: bytes) -> NDArray[np.uint8]:
    """A PNG of these rows, written at one go: each megabyte of memory that was not there before costs as much as its filters.

    signature, IHDR | length, IDAT, 78 01 | 00 FFFF 0000 and 65,535 bytes, again and again | 01 and the rest | sum | CRC, IEND
    """
    count, rest = divmod(len(filtered), _BLOCK)
    start = b"".join(
        (SIGNATURE, written(b"IHDR", header), struct.pack(">I4s", len(filtered) + 5 * count + 11, b"IDAT"), b"\x78\x01")
    )
    # No checksum behind the pixels: nobody looks at it.
    end = struct.pack(">I", zlib_ng.adler32(filtered)) + bytes(4) + _END
    rows = np.frombuffer(filtered, np.uint8)
    last = np.concatenate((np.frombuffer(struct.pack("<BHH", 1, rest, 0xFFFF ^ rest), np.uint8), rows[count * _BLOCK :]))
    made = np.empty(len(start) + count * (_BLOCK + 5) + len(last) + len(end), np.uint8)
    made[: len(start)] = np.frombuffer(start, np.uint8)
    made[-len(end) :] = np.frombuffer(end, np.uint8)
    made[-len(end) - len(last) : -len(end)] = last
    blocks = made[len(start) : -len(end) - len(last)].reshape(count, _BLOCK + 5)
    blocks[:, :5] = _BLOCK_START
    blocks[:, 5:] = rows[: count * _BLOCK].reshape(count, _BLOCK)
    return made
