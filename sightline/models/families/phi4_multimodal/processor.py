"""What the model sees of an image: crops of the picture at nearly its own size, and all of it in one more.

The picture is resized to fill a canvas of whole crops along one side; the rest is white, below or to the right. Patches that
are all white do not count: crops at the edge have as many rows or columns of patches as reach into the picture.

```
 canvas ┌────┬────┬──┬─┐   global   all of the canvas, interpolated to a crop
        │full│full│e │ │   full     whole crops
        │    │    │  │ │   edge     those of the last column (or row), without what is all white
        ├────┼────┼──┤ │            three views at most, of crops of one size each
        │full│full│e │ │
        └────┴────┴──┴─┘
```

Rows of an item, half as many each way as patches, rounded up:

```
crops    lines that run through all crops beside one another, each with a newline behind it
         a separator
global   its lines, each with a newline behind it
```
"""

import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from sightline.errors import ConfigError, MediaError
from sightline.media.item import fingerprint
from sightline.models.families.phi4_multimodal.config import VISION_ADAPTER, CropTowerSpec
from sightline.models.family import ProcessorFiles
from sightline.models.hf_config import HALF
from sightline.spec import ModelSpec, PatchSpec, ProcessorSpec
from sightline.types import (
    ImageHeader,
    MediaItem,
    MediaLayout,
    MediaSpan,
    PromptForm,
    RunPositions,
    Size,
    VideoHeader,
    View,
)

NEWLINE, SEPARATOR = -1, -2  # as ProcessorSpec.arrange names learned rows
PAD = "<|endoftext10|>"
# Prompts may have either form; numbers say nothing, images come in the order in which they stand.
PLACEHOLDERS = (PAD, *(f"<|image_{number}|>" for number in range(1, 1001)))
WHITE = (255, 255, 255)
_LEAST_SIDE = 10  # pixels of a resized picture


@dataclass(frozen=True)
class CropProcessor(ProcessorSpec):
    crop: int  # pixels along a side

    @property
    def side(self) -> int:
        """Patches along a side of a crop."""
        return self.crop // self.image.patch_size

    @property
    def most_crops(self) -> int:
        return max(1, self.image.max_pixels // self.crop**2)

    # ---- What is seen

    def layout(self, header: ImageHeader | VideoHeader) -> MediaLayout:
        assert isinstance(header, ImageHeader), "a video came to a model that takes none"
        down, across = self._crops(header.height, header.width)
        canvas = (down * self.crop, across * self.crop)
        fitted = _fit(header.height, header.width, canvas)
        if min(fitted) < _LEAST_SIDE:
            size, new = f"{header.width}x{header.height}", f"{fitted[1]}x{fitted[0]}"
            raise MediaError(f"A picture of {size} pixels is too narrow: resized, it would be {new}.")
        whole = (self.crop, self.crop)
        views = [View(fitted, canvas, whole, resample="bilinear", colour=WHITE, reduced=whole)]
        views += self._parts(fitted, canvas)
        grids = tuple(self._grid(view) for view in views)
        rows = (
            self._rows(self.side, self.side) + 1 + self._rows(*(self._seen(*pair) for pair in zip(fitted, canvas, strict=True)))
        )
        made_of = f"{fingerprint(self.image, canvas)} views={views!r} lines, separator, global"
        return MediaLayout(tuple(views), grids, rows, made_of)

    def _crops(self, height: int, width: int) -> Size:
        """Down and across: as many as the picture needs in its own size; where those are too many, as many as suit its aspect
        best, and of equally good ones the most that it fills half."""
        down, across = math.ceil(height / self.crop), math.ceil(width / self.crop)
        if down * across <= self.most_crops:
            return down, across
        best, least = (1, 1), math.inf
        for columns, rows in _grids(self.most_crops):
            off = abs(width / height - columns / rows)
            filled = height * width > 0.5 * self.crop**2 * columns * rows
            if off < least or (off == least and filled):
                best, least = (rows, columns), min(off, least)
        return best

    def _parts(self, fitted: Size, canvas: Size) -> Iterator[View]:
        """Views of crops of one size each: what is whole, and the last row and column of crops, which may be smaller."""
        spans = [list(self._runs(*pair)) for pair in zip(fitted, canvas, strict=True)]
        for top, height, tile_height in spans[0]:
            for left, width, tile_width in spans[1]:
                yield View(
                    resized=fitted,
                    canvas=(height, width),
                    tile=(tile_height, tile_width),
                    offset=(-top, -left),
                    resample="bilinear",
                    colour=WHITE,
                )

    def _runs(self, fitted: int, canvas: int) -> Iterator[tuple[int, int, int]]:
        """(start, length, length of a crop) in pixels along an axis: of whole crops, and of the last one if it is none."""
        whole, rest = divmod(self._seen(fitted, canvas) * self.image.patch_size, self.crop)
        if whole:
            yield 0, whole * self.crop, self.crop
        if rest:
            yield whole * self.crop, rest, rest

    def _seen(self, fitted: int, canvas: int) -> int:
        """Patches along an axis that are not all white."""
        return (canvas - (canvas - fitted) // self.image.patch_size * self.image.patch_size) // self.image.patch_size

    def _grid(self, view: View) -> tuple[int, int, int]:
        tiles = math.prod(whole // tile for whole, tile in zip(view.shown, view.tile, strict=True))
        return tiles, view.tile[0] // self.image.patch_size, view.tile[1] // self.image.patch_size

    def _rows(self, height: int, width: int) -> int:
        """Of so many patches, with newlines."""
        return _half(height) * (_half(width) + 1)

    def arrange(self, item: MediaItem) -> NDArray[np.int64]:
        whole = item.grids[0]
        cells = _half(whole[1]) * _half(whole[2])
        lines = [*_lines(self._numbers(item, cells)), np.array([SEPARATOR])]
        lines += _lines(np.arange(cells).reshape(_half(whole[1]), -1))
        return np.concatenate(lines).astype(np.int64)

    def _numbers(self, item: MediaItem, first: int) -> NDArray[np.int64]:
        """Which of the tower's rows stands where, over all crops; those of the parts begin with `first`. Another server may
        have made the views up: they must cover a whole, each place once."""
        cell, parts = 2 * self.image.patch_size, item.views[1:]
        high, wide = (max((_cells(v.canvas[axis] - v.offset[axis], cell) for v in parts), default=0) for axis in (0, 1))
        unfit = MediaError(f"The views of {item.ref.source} do not fit together.")
        if high * wide != sum(crops * _half(rows) * _half(columns) for crops, rows, columns in item.grids[1:]):
            raise unfit
        found = np.full((high, wide), -1, np.int64)
        for view, (_, height, width) in zip(parts, item.grids[1:], strict=True):
            down, across = view.canvas[0] // view.tile[0], view.canvas[1] // view.tile[1]
            high, wide = _half(height), _half(width)
            numbers = first + np.arange(down * across * high * wide).reshape(down, across, high, wide)
            top, left = -view.offset[0] // cell, -view.offset[1] // cell
            target = found[top : top + down * high, left : left + across * wide]
            if top < 0 or left < 0 or target.shape != (down * high, across * wide):
                raise unfit
            target[:] = numbers.transpose(0, 2, 1, 3).reshape(target.shape)
            first += numbers.size
        if (found < 0).any():
            raise unfit
        return found

    # ---- How it stands in a prompt

    def placeholders(self, kind: Literal["image", "video"]) -> tuple[str, ...]:
        return PLACEHOLDERS if kind == "image" else ()

    def written(self, kind: Literal["image", "video"], number: int) -> str:
        return f"<|{kind}_{number}|>"

    def prompt_form(self, item: MediaItem) -> PromptForm:
        return PromptForm(PAD, (item.rows,))

    def positions(self, item: MediaItem, span: MediaSpan) -> RunPositions:
        """Rows are numbered as text."""
        return RunPositions(np.tile(np.arange(span.count, dtype=np.int32), (3, 1)), span.count)

    def adapter(self, items: Sequence[MediaItem]) -> int:
        return VISION_ADAPTER if items else -1

    # ---- Limits

    def most_patches_at_once(self) -> int:
        return self.side**2

    def most_patches_per_item(self) -> int:
        return self.side**2 * (1 + self.most_crops)


@functools.cache
def _grids(most: int) -> tuple[Size, ...]:
    """(columns, rows) of crops, the fewest first."""
    found = [(columns, rows) for columns in range(1, most + 1) for rows in range(1, most // columns + 1)]
    return tuple(sorted(found, key=math.prod))


def _fit(height: int, width: int, canvas: Size) -> Size:
    """The picture's size where it fills the canvas along one side."""
    by_height, by_width = canvas[0] / height, canvas[1] / width
    if by_width < by_height:
        return int(height * by_width), canvas[1]
    return canvas[0], int(width * by_height)


def _half(patches: int) -> int:
    return -(-patches // 2)


def _cells(length: int, cell: int) -> int:
    return -(-length // cell)


def _lines(numbers: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    return [np.append(line, NEWLINE) for line in numbers]


def read_processor(files: ProcessorFiles, spec: ModelSpec) -> CropProcessor:
    vision = spec.vision
    assert isinstance(vision, CropTowerSpec)
    crops = files.image.integer("dynamic_hd", 36)
    for name in ("image_mean", "image_std"):
        if files.image.numbers(name, HALF) != HALF:
            raise ConfigError(f"{files.image.name}: '{name}' must be {list(HALF)}: the tower relies on what white becomes.")
    files.image.ignore("auto_map", "audio_compression_rate", "audio_downsample_rate", "audio_feat_stride")
    files.done()
    return CropProcessor(
        image=PatchSpec(
            min_pixels=vision.crop_size**2,
            max_pixels=crops * vision.crop_size**2,
            patch_size=vision.patch_size,
            temporal_patch_size=1,
            merge_size=1,
            mean=HALF,
            std=HALF,
        ),
        video=None,
        crop=vision.crop_size,
    )
