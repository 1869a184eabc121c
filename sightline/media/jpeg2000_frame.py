"""What the boxes and markers of a JPEG 2000 file say about its pixels: enough to know that decoders mean the same by it.

Those are files of three components of 8 bits in sRGB, coded as the first part of the standard has it by default: one way of
coding for all tiles, no regions, no changes of order, no palette. The reversible transform has whole numbers, so that every
decoder gives the same pixels; the irreversible one has fractions, whose rounding is a decoder's own.
"""

import struct
from dataclasses import dataclass

SIGNATURE = b"\x00\x00\x00\x0cjP  \r\n\x87\n"
_MOST_BOXES = 64
_MOST_TILE_PARTS = 4096
_MOST_SEGMENTS = 256  # of a header
_MOST_LAYERS = 32
_SOC, _SOT, _SOD, _EOC = b"\xff\x4f", 0xFF90, 0xFF93, b"\xff\xd9"
_SIZ, _COD, _QCD = 0xFF51, 0xFF52, 0xFF5C
_COMMENT, _REGISTRATION, _TILE_LENGTHS, _PACKET_LENGTHS = 0xFF64, 0xFF63, 0xFF55, frozenset({0xFF57, 0xFF58})
_MAIN = frozenset({_SIZ, _COD, _QCD, _COMMENT, _REGISTRATION, _TILE_LENGTHS}) | _PACKET_LENGTHS
_TILE = _PACKET_LENGTHS | {_COMMENT}
_IN_HEADER = frozenset({b"ihdr", b"colr", b"res "})  # no palette, no channels in another order, no other depths
_SRGB = 16


@dataclass(frozen=True)
class Jpeg2000Frame:
    height: int
    width: int
    reversible: bool


def read_everyday_frame(data: bytes) -> Jpeg2000Frame | None:
    """None where decoders may differ, or where the file is not whole."""
    if not data.startswith(SIGNATURE):
        return None
    try:
        boxes = _boxes(data, 0, len(data))
        headers = [part for kind, part in boxes if kind == b"jp2h"]
        codes = [part for kind, part in boxes if kind == b"jp2c"]
        if len(headers) != 1 or len(codes) != 1 or not _has_everyday_colours(data, headers[0]):
            return None
        return _frame(data, *codes[0])
    except (struct.error, _NotEverydayError):
        return None


class _NotEverydayError(Exception):
    """Something that decoders may differ about."""


def _check(fine: bool) -> None:
    if not fine:
        raise _NotEverydayError


def _boxes(data: bytes, start: int, end: int) -> list[tuple[bytes, tuple[int, int]]]:
    """Type of each box, and where its contents start and end."""
    found: list[tuple[bytes, tuple[int, int]]] = []
    while start < end:
        length, kind = struct.unpack_from(">I4s", data, start)
        content = start + 8
        if length == 1:
            (length,), content = struct.unpack_from(">Q", data, start + 8), start + 16
        stop = end if length == 0 else start + length
        _check(content <= stop <= end and len(found) < _MOST_BOXES)
        found.append((kind, (content, stop)))
        start = stop
    return found


def _has_everyday_colours(data: bytes, part: tuple[int, int]) -> bool:
    boxes = _boxes(data, *part)
    kinds = [kind for kind, _ in boxes]
    if not set(kinds) <= _IN_HEADER or kinds.count(b"ihdr") != 1 or kinds.count(b"colr") != 1:
        return False
    places = dict(boxes)
    components, depth = struct.unpack_from(">HB", data, places[b"ihdr"][0] + 8)
    method, colours = struct.unpack_from(">BxxI", data, places[b"colr"][0])
    return (components, depth, method, colours) == (3, 7, 1, _SRGB)


def _frame(data: bytes, start: int, end: int) -> Jpeg2000Frame:
    _check(data[start : start + 2] == _SOC)
    segments, index = _segments(data, start + 2, end, _MAIN, _SOT)
    kinds = [kind for kind, _ in segments]
    _check(kinds[:1] == [_SIZ] and all(kinds.count(one) == 1 for one in (_SIZ, _COD, _QCD)))
    at = dict(segments)
    width, height = _size(data, at[_SIZ])
    style, layers, blocks, transform = struct.unpack_from(">BxHxxxxBB", data, at[_COD])
    _check(style <= 7 and layers <= _MOST_LAYERS and blocks == 0 and transform in (0, 1))
    for _ in range(_MOST_TILE_PARTS):
        if index == end - 2 and data[index:end] == _EOC:
            return Jpeg2000Frame(height, width, reversible=transform == 1)
        marker, length, part = struct.unpack_from(">HHxxI", data, index)
        _check(marker == _SOT and length == 10)
        _segments(data, index + 12, end, _TILE, _SOD)
        index = index + part if part else end - 2
        _check(index <= end - 2)
    raise _NotEverydayError


def _size(data: bytes, index: int) -> tuple[int, int]:
    """Width and height, if the picture and its tiles start at zero and all components are alike."""
    profile, width, height, *offsets = struct.unpack_from(">HIIII", data, index)
    tiles = struct.unpack_from(">IIII", data, index + 18)
    (components,) = struct.unpack_from(">H", data, index + 34)
    _check(profile & 0xC000 == 0 and not any(offsets) and not any(tiles[2:]) and components == 3)
    _check(data[index + 36 : index + 45] == b"\x07\x01\x01" * 3)
    return width, height


def _segments(data: bytes, index: int, end: int, allowed: frozenset[int], last: int) -> tuple[list[tuple[int, int]], int]:
    """Marker and contents' place of each segment up to the marker `last`, and where that stands."""
    found: list[tuple[int, int]] = []
    while len(found) < _MOST_SEGMENTS:
        (marker,) = struct.unpack_from(">H", data, index)
        if marker == last:
            return found, index
        (length,) = struct.unpack_from(">H", data, index + 2)
        _check(marker in allowed and length >= 2 and index + 2 + length < end)
        found.append((marker, index + 4))
        index += 2 + length
    raise _NotEverydayError
