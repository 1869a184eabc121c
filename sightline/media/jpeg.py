"""Bounds on what parsing and decoding a JPEG may cost, found by walking its markers.

A JPEG is a list of segments, then scans of coded pixels. Pillow handles each segment in Python: millions of empty comments,
or EXIF in thousands of pieces (joined anew with each), would keep it busy for minutes. Decoding goes over the whole picture
once per scan, and a scan that changes nothing takes some hundred bytes.
"""

import re
import struct

from PIL.JpegImagePlugin import MARKER

from sightline.errors import MediaError
from sightline.media.exif import check_exif

START = b"\xff\xd8\xff"
MAX_SEGMENTS = 4096
MAX_EXIF_SEGMENTS = 16  # of 64 kB; cameras write one
MAX_SCANS = 200  # progressive files have about ten

_SOS, _EOI, _APP1 = 0xFFDA, 0xFFD9, 0xFFE1
_SEQUENTIAL = (0xFFC0, 0xFFC1)  # frames of baseline and extended files
# Coded pixels write 255 as FF 00; D0 to D7 are restart markers among them.
_MARKER = re.compile(rb"\xff[^\x00\xff\xd0-\xd7]")


def check_segments(data: bytes, source: str) -> None:
    """Walks the markers in front of the pixels as Pillow will: it reads a payload where it has a handler for the marker."""
    segments = 0
    exif: list[bytes] = []
    offset = 2
    while (offset := data.find(b"\xff", offset)) >= 0 and offset + 4 <= len(data):
        marker = 0xFF00 | data[offset + 1]
        if marker in (0xFFFF, 0xFF00):  # padding
            offset += 1
            continue
        if marker == _SOS or marker not in MARKER:
            break
        segments += 1
        if segments > MAX_SEGMENTS:
            raise MediaError(f"Image {source} cannot be read: its JPEG file has more than {MAX_SEGMENTS:,} segments.")
        if MARKER[marker][2] is None:
            offset += 2
            continue
        (length,) = struct.unpack_from(">H", data, offset + 2)
        if marker == _APP1 and data.startswith(b"Exif\0\0", offset + 4):
            exif.append(data[offset + 10 : offset + 2 + length])
            if len(exif) > MAX_EXIF_SEGMENTS:
                raise MediaError(f"Image {source} cannot be read: its EXIF data has more than {MAX_EXIF_SEGMENTS} segments.")
        offset += 2 + max(length, 2)
    if exif:
        check_exif(b"".join(exif), source)


def count_scans(data: bytes, source: str) -> int:
    """How often decoding will go over the picture: a walk over all markers up to its end, as libjpeg does it.

    0.3 ms per megabyte, but nothing to speak of for everyday files: where the first scan has all components and is not
    progressive, libjpeg is done with it. Neither what looks like a scan inside a segment nor what follows the end counts.
    """
    scans = segments = 0
    components = 0  # of a frame that is not progressive
    offset = 2
    while found := _MARKER.search(data, offset):
        marker = 0xFF00 | data[found.end() - 1]
        offset = found.end()
        if marker == _EOI:
            break
        segments += 1
        if segments > MAX_SEGMENTS:
            raise MediaError(f"Image {source} cannot be read: its JPEG file has more than {MAX_SEGMENTS:,} segments.")
        if marker in _SEQUENTIAL and offset + 7 < len(data):
            components = data[offset + 7]
        if marker == _SOS:
            if not scans and components and offset + 2 < len(data) and data[offset + 2] >= components:
                return 1
            scans += 1
            if scans > MAX_SCANS:
                raise MediaError(f"Image {source} cannot be read: its JPEG file has more than {MAX_SCANS} scans.")
        if marker in MARKER and MARKER[marker][2] is not None and offset + 2 <= len(data):
            offset += struct.unpack_from(">H", data, offset)[0]
    return scans
