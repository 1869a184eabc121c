"""Metadata that a PNG keeps behind its pixels, found without decoding them.

A PNG is a signature and a list of chunks. Pillow reads the chunks before the pixels when it opens a file, and those behind
them only when it has decoded the pixels; asked for EXIF, it decodes everything just to be sure. Here the chunks behind are
moved in front and the pixels are left out, so that opening the result shows all metadata:

    signature IHDR … IDAT IDAT … eXIf tEXt IEND      the file
    signature IHDR …             eXIf tEXt IDAT IEND what metadata_first makes; its IDAT is empty
"""

import itertools
import re
import struct
import zlib
from collections.abc import Iterator
from typing import NamedTuple

from sightline.errors import MediaError

SIGNATURE = b"\x89PNG\r\n\x1a\n"
# A 64 MB file in chunks of 512 bytes has 131,072. Without a limit, millions of empty chunks would keep us busy for minutes.
MAX_CHUNKS = 200_000

_HEADER = struct.Struct(">I4s")  # length of the payload, name; payload and a 4-byte checksum follow
_NAME = re.compile(rb"\w{4}")  # what Pillow takes for a name; it stops reading at anything else
_PIXELS = (b"IDAT", b"fdAT")
CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}  # by colour type: grey, RGB, palette, grey and alpha, RGBA
_METADATA = (b"eXIf", b"tEXt", b"zTXt", b"iTXt")  # the chunks in which Pillow looks for an orientation


class PngChunk(NamedTuple):
    name: bytes
    start: int  # the payload is data[start:end]
    end: int

    @property
    def offset(self) -> int:
        return self.start - _HEADER.size


def check_chunk_count(data: bytes, source: str) -> None:
    for number, _ in enumerate(chunks(data)):
        if number >= MAX_CHUNKS:
            raise MediaError(f"Image {source} cannot be read: its PNG file has more than {MAX_CHUNKS:,} chunks.")


def bytes_per_pixel(data: bytes) -> int:
    """Of a PNG that Pillow could open, from its IHDR (the costliest, if there are several); a part of a byte counts as one."""
    headers = [
        data[chunk.start : chunk.end] for chunk in itertools.takewhile(_is_before_pixels, chunks(data)) if chunk.name == b"IHDR"
    ]
    return max(CHANNELS[payload[9]] * (2 if payload[8] == 16 else 1) for payload in headers)


def _is_before_pixels(chunk: PngChunk) -> bool:
    return chunk.name not in _PIXELS


def metadata_first(data: bytes, animated: bool) -> bytes:
    """The PNG with late metadata moved in front of the pixels and no pixels, or `data` itself if it has no late metadata.

    In an animation Pillow stops at the first fcTL behind the first picture: what follows belongs to later frames.
    """
    pixels_at = 0
    late = []
    for chunk in chunks(data):
        if chunk.name in _PIXELS:
            pixels_at = pixels_at or chunk.offset
        elif pixels_at and (chunk.name == b"IEND" or (animated and chunk.name == b"fcTL")):
            break
        elif pixels_at and chunk.name in _METADATA and chunk.end <= len(data):
            # Pillow does not verify the checksum of a late chunk, but it does that of an early one: write it anew.
            late.append(written(chunk.name, data[chunk.start : chunk.end]))
    if not late:
        return data
    return b"".join((data[:pixels_at], *late, written(b"IDAT", b""), written(b"IEND", b"")))


def chunks(data: bytes) -> Iterator[PngChunk]:
    offset = len(SIGNATURE)
    while offset + _HEADER.size <= len(data):
        length, name = _HEADER.unpack_from(data, offset)
        if not _NAME.fullmatch(name):
            return
        start = offset + _HEADER.size
        yield PngChunk(name, start, start + length)
        offset = start + length + 4


def written(name: bytes, payload: bytes) -> bytes:
    return _HEADER.pack(len(payload), name) + payload + struct.pack(">I", zlib.crc32(payload, zlib.crc32(name)))
