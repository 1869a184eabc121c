"""A bound on what reading EXIF data may cost.

EXIF data are a directory of entries, each with the place and the size of its value. Nothing keeps thousands of entries from
naming the same large value, and Pillow before version 13 copies it for each of them: gigabytes out of one megabyte.
"""

import re
import struct

from sightline.errors import MediaError

MAX_EXIF_BYTES = 1_100_000  # a JPEG has room for 64 kB, or a few times that in pieces
# Values of an honest directory do not overlap: together they are smaller than the data. Broken ones have a few absurd sizes.
MOST_READ = 32

_START = re.compile(rb"(?:Exif\0\0){0,2}")
_UNITS = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8, 13: 4, 16: 8}  # bytes, by type


def check_exif(data: bytes, source: str) -> None:
    if len(data) > MAX_EXIF_BYTES:
        raise MediaError(
            f"Image {source} cannot be read: its EXIF data has {len(data) / 1e6:.1f} MB, "
            f"more than the {MAX_EXIF_BYTES / 1e6:g} MB allowed."
        )
    if _bytes_read(data) > MOST_READ * len(data):
        raise MediaError(
            f"Image {source} cannot be read: "
            f"the values of its EXIF data have more than {MOST_READ} times the bytes that are there."
        )


def _bytes_read(data: bytes) -> int:
    """What copying the value of each entry of the main directory would read; 0 for data that are no directory."""
    found = _START.match(data)
    start = found.end() if found else 0
    order = {b"II": "<", b"MM": ">"}.get(data[start : start + 2])
    length = len(data) - start
    if order is None or length < 8:
        return 0
    (offset,) = struct.unpack_from(f"{order}I", data, start + 4)
    if offset + 2 > length:
        return 0
    (count,) = struct.unpack_from(f"{order}H", data, start + offset)
    first = start + offset + 2
    entries = data[first : first + 12 * min(count, (len(data) - first) // 12)]
    total = 0
    for _, kind, number, value_offset in struct.iter_unpack(f"{order}HHII", entries):
        size = number * _UNITS.get(kind, 0)
        if size > 4:  # smaller values stand in the entry itself
            total += max(min(size, length - value_offset), 0)
    return total
