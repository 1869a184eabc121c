"""What the markers of a JPEG say about its pixels: enough to know which decoders mean the same by it.

Decoders agree on everyday files: 8 bits, Huffman codes, grey or YCbCr with chroma halved at most. Beyond that they differ: in
which colours four components are, in what they make of a file that ends too early, in how coarse chroma is spread out.
"""

import struct
from dataclasses import dataclass

import numpy as np

from sightline.media.jpeg import MAX_SCANS, MAX_SEGMENTS, START

_BASELINE, _EXTENDED, _PROGRESSIVE = 0xC0, 0xC1, 0xC2
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  # without tables of codes, a reserved one, arithmetic conditioning
_SOS, _APP0, _APP14 = 0xDA, 0xE0, 0xEE
_END = 0xD9
_BETWEEN_SCANS = frozenset({0xC4, _SOS, 0xDB, 0xDD, 0xFE, *range(0xE0, 0xF0)})  # tables, scans, restarts, comments, APPn
_LUMA_SAMPLINGS = ((1, 1), (2, 1), (1, 2), (2, 2))  # 4:4:4, 4:2:2, 4:4:0, 4:2:0, when chroma has (1, 1)


@dataclass(frozen=True)
class JpegFrame:
    process: int  # the second byte of the marker that opens the frame, 0xC0 to 0xCF
    precision: int  # bits of a sample
    height: int
    width: int
    components: tuple[tuple[int, int, int], ...]  # (id, samples across, samples down) of each
    jfif: bool
    adobe_transform: int | None  # of Adobe's segment: 0 none, 1 YCbCr, 2 YCCK
    scan_start: int  # where the first scan's marker stands


def read_frame(data: bytes) -> JpegFrame | None:
    """The frame in front of the first scan; None if the markers are not one clean list of segments with one frame."""
    if not data.startswith(START):
        return None
    offset, jfif, adobe_transform = 2, False, None
    frame: tuple[int, bytes] | None = None
    for _ in range(MAX_SEGMENTS):
        while data[offset : offset + 2] == b"\xff\xff":  # padding
            offset += 1
        if offset + 4 > len(data) or data[offset] != 0xFF:
            return None
        marker = data[offset + 1]
        (length,) = struct.unpack_from(">H", data, offset + 2)
        payload = data[offset + 4 : offset + 2 + length]
        if not (0xC0 <= marker <= 0xCF or 0xDA <= marker <= 0xFE) or length < 2 or len(payload) != length - 2:
            return None
        if marker == _SOS:
            return _frame(*frame, jfif, adobe_transform, offset) if frame is not None else None
        if marker in _FRAMES:
            if frame is not None:
                return None
            frame = marker, payload
        elif marker == _APP0 and payload.startswith(b"JFIF\0"):
            jfif = True
        elif marker == _APP14 and payload.startswith(b"Adobe"):
            if len(payload) < 12:
                return None
            adobe_transform = payload[11]
        offset += 2 + length
    return None


def _frame(process: int, payload: bytes, jfif: bool, adobe_transform: int | None, scan_start: int) -> JpegFrame | None:
    if len(payload) < 6 or len(payload) != 6 + 3 * payload[5]:
        return None
    precision, height, width, count = struct.unpack_from(">BHHB", payload)
    parts = [payload[6 + 3 * number : 9 + 3 * number] for number in range(count)]
    components = tuple((part[0], part[1] >> 4, part[1] & 15) for part in parts)
    return JpegFrame(process, precision, height, width, components, jfif, adobe_transform, scan_start)


def is_everyday(data: bytes, frame: JpegFrame) -> bool:
    """Whether decoders agree on the file, but for the rounding of their arithmetic and how they spread out chroma."""
    if frame.process not in (_BASELINE, _EXTENDED, _PROGRESSIVE) or frame.precision != 8 or 0 in (frame.height, frame.width):
        return False
    return _has_everyday_colours(frame) and ends_well(data, frame.scan_start)


def _has_everyday_colours(frame: JpegFrame) -> bool:
    samplings = [(across, down) for _, across, down in frame.components]
    if len(samplings) == 1:
        return samplings[0] == (1, 1)
    if len(samplings) != 3 or samplings[0] not in _LUMA_SAMPLINGS or samplings[1:] != [(1, 1), (1, 1)]:
        return False
    # Without a segment that names the colours, libjpeg goes by the ids of the components. Other ids and transforms are rare.
    if frame.adobe_transform is not None:
        return frame.adobe_transform == 1
    return frame.jfif or [component[0] for component in frame.components] == [1, 2, 3]


def ends_well(data: bytes, scan_start: int) -> bool:
    """Whether from the first scan on nothing but scans, tables and comments come before the end of the picture, and not too
    many of them. Pillow refuses a file that was cut off, and one with markers among its pixels that should not be there."""
    values = np.frombuffer(data, np.uint8)
    offsets = np.flatnonzero(values[scan_start:-1] == 0xFF) + scan_start
    following = values[offsets + 1]
    is_marker = (following != 0) & (following != 0xFF) & ((following < 0xD0) | (following > 0xD7))  # not pixels, not restarts
    offset = scan_start
    scans = segments = 0
    for marker_offset in offsets[is_marker]:
        if marker_offset < offset:  # inside the segment before
            continue
        marker = data[marker_offset + 1]
        if marker == _END:
            return True
        segments += 1
        scans += marker == _SOS
        if marker not in _BETWEEN_SCANS or scans > MAX_SCANS or segments > MAX_SEGMENTS or marker_offset + 4 > len(data):
            return False
        offset = marker_offset + 2 + struct.unpack_from(">H", data, marker_offset + 2)[0]
    return False
