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
# Coded pixels write 255 as FF 00; D0 to D7 are restart markers among them.
_MARKER = re.compile(rb"\xff[^\x00\xff\xd0-\xd7]")


def check_segments(data: bytes, source: str) -> None:
    """Walks the markers in front of the pixels as Pillow will: it reads a payload where it has a handler for the marker."""
    segments = 0
    exif: list[bytes] = []
    place = 2
    while (place := data.find(b"\xff", place)) >= 0 and place + 4 <= len(data):
        marker = 0xFF00 | data[place + 1]
        if marker in (0xFFFF, 0xFF00):  # padding
            place += 1
            continue
        if marker == _SOS or marker not in MARKER:
            break
        segments += 1
        if segments > MAX_SEGMENTS:
            raise MediaError(f"Image {source} cannot be read: its JPEG file has more than {MAX_SEGMENTS:,} segments.")
        if MARKER[marker][2] is None:
            place += 2
            continue
        (length,) = struct.unpack_from(">H", data, place + 2)
        if marker == _APP1 and data.startswith(b"Exif\0\0", place + 4):
            exif.append(data[place + 10 : place + 2 + length])
            if len(exif) > MAX_EXIF_SEGMENTS:
                raise MediaError(f"Image {source} cannot be read: its EXIF data has more than {MAX_EXIF_SEGMENTS} segments.")
        place += 2 + max(length, 2)
    if exif:
        check_exif(b"".join(exif), source)


def check_scans(data: bytes, source: str) -> None:
    """Counts the scans up to the end of the picture. Nearly all files are done with the first look."""
    if data.count(b"\xff\xda") <= MAX_SCANS:
        return
    scans = 0
    place = 2
    while found := _MARKER.search(data, place):
        marker = 0xFF00 | data[found.end() - 1]
        place = found.end()
        if marker == _EOI:
            return
        if marker == _SOS:
            scans += 1
            if scans > MAX_SCANS:
                raise MediaError(f"Image {source} cannot be read: its JPEG file has more than {MAX_SCANS} scans.")
        if marker in MARKER and MARKER[marker][2] is not None and place + 2 <= len(data):
            place += struct.unpack_from(">H", data, place)[0]
