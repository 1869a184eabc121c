"""Files other than JPEGs that the GPU may decode: what kinds there are, and which of them a library decodes as Pillow does.

A kind is a format and how its pixels are coded, as the file's header says. At the start each kind is tried with small files: it
goes to the GPU if every pixel equals Pillow's, and to Pillow if one differs or the library cannot decode it. So where a file is
decoded follows from its header and the configuration.
"""

import functools
import io
from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from sightline.encoder.jpeg_library import JpegLibrary
from sightline.errors import MediaError
from sightline.media import jpeg2000_frame, tiff_frame
from sightline.types import ImageHeader

JPEG = "JPEG"
_REVERSIBLE, _IRREVERSIBLE = "JPEG 2000, reversible", "JPEG 2000, irreversible"
# A quarter of what JPEGs may have: libraries work in four bytes of each sample, and the memory plan knows only what they take
# for JPEGs.
MOST_PIXELS = 4_000_000
_SHORTEST_SIDE = 16

_LZW, _DEFLATE = "tiff_lzw", "tiff_adobe_deflate"
_DIFFERENCES = {317: 2}
# How Pillow writes files of each kind.
_WRITTEN: Mapping[str, tuple[tuple[str, dict[str, object]], ...]] = {
    _REVERSIBLE: (("JPEG2000", {}), ("JPEG2000", {"tile_size": (64, 64), "mct": 0})),
    _IRREVERSIBLE: (("JPEG2000", {"irreversible": True}), ("JPEG2000", {"irreversible": True, "quality_layers": [20]})),
    "TIFF, plain": (("TIFF", {}),),
    "TIFF, lzw": (("TIFF", {"compression": _LZW}),),
    "TIFF, lzw of differences": (("TIFF", {"compression": _LZW, "tiffinfo": _DIFFERENCES}),),
    "TIFF, deflate": (("TIFF", {"compression": _DEFLATE}),),
    "TIFF, deflate of differences": (("TIFF", {"compression": _DEFLATE, "tiffinfo": _DIFFERENCES}),),
}
KINDS = tuple(_WRITTEN)


def kind_of(data: bytes, header: ImageHeader, source: str) -> str | None:
    """The kind of a file; None for those of no kind, and for small, large and turned ones, which the CPU decodes."""
    if header.orientation != 1 or min(header.width, header.height) < _SHORTEST_SIDE:
        return None
    if header.width * header.height > MOST_PIXELS:
        return None
    try:
        kind, size = _kind_and_size(data, header.format, source)
    except MediaError:
        return None
    return kind if size == (header.height, header.width) else None


def _kind_and_size(data: bytes, name: str, source: str) -> tuple[str, tuple[int, int]]:
    if name == "JPEG2000" and (coded := jpeg2000_frame.read_everyday_frame(data)) is not None:
        return _REVERSIBLE if coded.reversible else _IRREVERSIBLE, (coded.height, coded.width)
    if name == "TIFF" and (stored := tiff_frame.read_everyday_frame(data, source)) is not None:
        of_differences = " of differences" if stored.differences else ""
        return f"TIFF, {stored.coding}{of_differences}", (stored.height, stored.width)
    return "", (0, 0)


def equal_kinds(library: JpegLibrary, device: torch.device) -> tuple[str, ...]:
    """Those that the library decodes there exactly as Pillow does."""
    return tuple(kind for kind, difference in differences(library, device).items() if difference == 0)


def differences(library: JpegLibrary, device: torch.device) -> dict[str, int | None]:
    """The largest difference to Pillow's pixels, by kind; None where it cannot decode them, or Pillow cannot write them."""
    return {kind: _difference(library, device, kind) for kind in KINDS}


def _difference(library: JpegLibrary, device: torch.device, kind: str) -> int | None:
    largest = 0
    try:
        for data, expected in _trials(kind):
            target = torch.zeros(expected.shape, dtype=torch.uint8, device=device)
            if not library.decode([data], [target])[0]:
                return None
            largest = max(largest, int(np.abs(target.cpu().numpy().astype(np.int16) - expected).max()))
    except Exception:  # a library that is not made for the format, a codec that is not there: there are many ways
        return None
    return largest


@functools.cache
def _trials(kind: str) -> tuple[tuple[bytes, NDArray[np.uint8]], ...]:
    """Files of a kind, and Pillow's pixels of them: noise beside a slope of colours, where roundings that differ show."""
    random = np.random.default_rng(0)
    rows, columns = np.mgrid[:200, :136]
    slope = np.stack([rows, columns, (rows + columns) // 2], -1)
    pixels = np.where(columns[..., None] < 68, random.integers(0, 256, slope.shape), slope).astype(np.uint8)
    found = []
    for name, options in _WRITTEN[kind]:
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, name, **options)
        found.append((file.getvalue(), np.asarray(Image.open(file).convert("RGB"))))
    return tuple(found)
