"""What the model sees of an image: all of it in one tile, and on the canvas of tiles that keeps the most of it.

Rows of an item, r of them along a side of a tile:

```
global view   r lines of r rows, each with a newline behind it
              a separator
tiles         r * down lines of r * across rows, each with a newline behind it: lines run through all tiles beside one another
```

Beside more than one other image a picture has no canvas of its own: its tile is the global view once more. So it is wherever
the best canvas is a single tile; the tower then sees the tile once, and its rows stand twice.
"""

import dataclasses
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from sightline.errors import ConfigError, MediaError
from sightline.media.item import fingerprint
from sightline.models import hf_config
from sightline.models.families.deepseek_vl2.spec import SiglipTowerSpec
from sightline.models.family import ProcessorFiles
from sightline.spec import ModelSpec, PatchSpec, ProcessorSpec
from sightline.types import ImageHeader, MediaItem, MediaLayout, MediaSpan, PromptForm, RunPositions, Size, VideoHeader, View

NEWLINE, SEPARATOR = -1, -2  # as ProcessorSpec.arrange names learned rows
PAD = "<image>"
MOST_TILED_IMAGES = 2  # of a request


@dataclass(frozen=True)
class DeepseekVL2Processor(ProcessorSpec):
    tile: int  # pixels along a side
    rows_side: int
    canvases: tuple[Size, ...]  # width and height in pixels, in the order in which equal ones are preferred

    @property
    def side(self) -> int:
        """Patches along a side of a tile."""
        return self.tile // self.image.patch_size

    def with_images(self, count: int) -> "DeepseekVL2Processor":
        return self if count <= MOST_TILED_IMAGES else dataclasses.replace(self, canvases=((self.tile, self.tile),))

    def layout(self, header: ImageHeader | VideoHeader) -> MediaLayout:
        assert isinstance(header, ImageHeader), "a video came to a model that takes none"
        whole = self._padded(header, (self.tile, self.tile))
        canvas = self._best(header)
        views: tuple[View, ...] = (whole,)
        tiles = 1
        if canvas != (self.tile, self.tile):
            views, tiles = (whole, self._padded(header, canvas)), canvas[0] * canvas[1] // self.tile**2
        grids = tuple((count, self.side, self.side) for count in (1, tiles)[: len(views)])
        down, across = canvas[0] // self.tile, canvas[1] // self.tile
        made_of = f"{fingerprint(self.image, canvas)} views={views!r} global, separator, tiles in lines"
        return MediaLayout(views, grids, self._rows(1, 1) + 1 + self._rows(down, across), made_of)

    def _padded(self, header: ImageHeader, canvas: Size) -> View:
        """As large as it fits on the canvas, in the middle of it: rounded as Pillow's ImageOps.pad does."""
        height, width = header.height, header.width
        high, wide = canvas
        if width / height > wide / high:
            fitted = (round(height / width * wide), wide)
        elif width / height < wide / high:
            fitted = (high, round(width / height * high))
        else:
            fitted = canvas
        if 0 in fitted:
            raise MediaError(f"An image of {width} x {height} pixels is too thin: nothing of it is left on {wide} x {high}.")
        corner = (round((high - fitted[0]) * 0.5), round((wide - fitted[1]) * 0.5))
        return View(resized=fitted, canvas=canvas, tile=(self.tile, self.tile), offset=corner)

    def _best(self, header: ImageHeader) -> Size:
        """The canvas that keeps the most pixels of a picture, of equal ones that with the fewest others. (height, width)"""
        best, most, least = (self.tile, self.tile), 0, 0
        for wide, high in self._allowed():
            scale = min(wide / header.width, high / header.height)
            fitted = int(header.width * scale) * int(header.height * scale)
            kept = min(fitted, header.width * header.height)
            wasted = wide * high - kept
            if kept > most or (kept == most and wasted < least):
                best, most, least = (high, wide), kept, wasted
        return best

    def _allowed(self) -> list[Size]:
        """Canvases of at most max_pixels, or the smallest."""
        fits = [canvas for canvas in self.canvases if canvas[0] * canvas[1] <= self.image.max_pixels]
        return fits or [min(self.canvases, key=lambda canvas: canvas[0] * canvas[1])]

    def _rows(self, down: int, across: int) -> int:
        return down * self.rows_side * (across * self.rows_side + 1)

    def arrange(self, item: MediaItem) -> NDArray[np.int64]:
        own = self._lines(1, 1, 0)
        canvas = item.views[-1].canvas
        tiles = own
        if len(item.views) > 1:
            tiles = self._lines(canvas[0] // self.tile, canvas[1] // self.tile, self.rows_side**2)
        return np.concatenate([*own, np.array([SEPARATOR]), *tiles]).astype(np.int64)

    def _lines(self, down: int, across: int, first: int) -> list[NDArray[np.int64]]:
        """Of tiles that follow one another from row `first` on."""
        side = self.rows_side
        numbers = first + np.arange(down * across * side**2).reshape(down, across, side, side)
        joined = numbers.transpose(0, 2, 1, 3).reshape(down * side, across * side)
        return [np.append(line, NEWLINE) for line in joined]

    def placeholders(self, kind: Literal["image", "video"]) -> tuple[str, ...]:
        return (PAD,) if kind == "image" else ()

    def prompt_form(self, item: MediaItem) -> PromptForm:
        return PromptForm(PAD, (item.rows,))

    def positions(self, item: MediaItem, span: MediaSpan) -> RunPositions:
        """Rows are numbered as text."""
        return RunPositions(np.tile(np.arange(span.count, dtype=np.int32), (3, 1)), span.count)

    def most_patches_at_once(self) -> int:
        return self.side**2

    def most_patches_per_item(self) -> int:
        return self.side**2 * (1 + max(wide * high for wide, high in self._allowed()) // self.tile**2)


def read_processor(files: ProcessorFiles, spec: ModelSpec) -> DeepseekVL2Processor:
    vision, fields = spec.vision, files.image
    assert isinstance(vision, SiglipTowerSpec)
    canvases = _read_canvases(files, vision.tile_size)
    for name, expected in (("patch_size", vision.patch_size), ("downsample_ratio", vision.join)):
        if (value := fields.integer(name, expected)) != expected:
            raise ConfigError(f"{fields.name}: '{name}' is {value}, but the model's config.json says {expected}.")
    fields.must_be("normalize", True)
    fields.must_be("image_token", PAD)
    fields.must_be("sft_format", "deepseek")
    fields.ignore("add_special_token", "ignore_id", "mask_prompt", "pad_token")  # of training, and of batches
    mean, std = fields.numbers("image_mean", hf_config.HALF), fields.numbers("image_std", hf_config.HALF)
    if len(mean) != 3 or len(std) != 3 or 0.0 in std:
        raise ConfigError(f"{fields.name}: 'image_mean' and 'image_std' must hold three numbers each, std none of them 0.")
    files.done()
    return DeepseekVL2Processor(
        image=PatchSpec(
            min_pixels=vision.tile_size**2,
            max_pixels=max(wide * high for wide, high in canvases),
            patch_size=vision.patch_size,
            temporal_patch_size=1,
            merge_size=1,  # the projector joins patches of whole tiles
            mean=(mean[0], mean[1], mean[2]),
            std=(std[0], std[1], std[2]),
        ),
        video=None,
        tile=vision.tile_size,
        rows_side=vision.rows_side,
        canvases=canvases,
    )


def _read_canvases(files: ProcessorFiles, tile: int) -> tuple[Size, ...]:
    found = files.image.take("candidate_resolutions")
    sizes = [tuple(size) for size in found] if isinstance(found, list) else []
    whole = all(len(size) == 2 and all(isinstance(x, int) and x > 0 and x % tile == 0 for x in size) for size in sizes)
    if not sizes or not whole or sizes[0] != (tile, tile):
        raise ConfigError(
            f"{files.image.name}: 'candidate_resolutions' must be a list of widths and heights, multiples of {tile}, of which "
            f"the first is [{tile}, {tile}]."
        )
    return tuple((wide, high) for wide, high in sizes)
