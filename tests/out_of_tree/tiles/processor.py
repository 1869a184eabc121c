"""What the model sees of an image: all of it in one tile, and on the canvas of tiles that suits it best.

Rows of an item, r of them along a side of a tile:

```
global view   r lines of r rows, each with a newline behind it
              a separator
tiles         r * down lines of r * across rows, each with a newline behind it: lines run through all tiles beside one another
```
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from sightline.media.item import fingerprint
from sightline.models.family import ProcessorFiles
from sightline.spec import ModelSpec as Spec
from sightline.spec import PatchSpec, ProcessorSpec
from sightline.types import ImageHeader, MediaItem, MediaLayout, MediaSpan, PromptForm, RunPositions, Size, VideoHeader, View

from .config import TileTowerSpec

NEWLINE, SEPARATOR = -1, -2  # as ProcessorSpec.arrange names learned rows
PAD = "<|image_pad|>"


@dataclass(frozen=True)
class TilesProcessor(ProcessorSpec):
    tile: int  # pixels along a side
    canvases: tuple[Size, ...]  # tiles down and across

    @property
    def side(self) -> int:
        """Patches along a side of a tile."""
        return self.tile // self.image.patch_size

    @property
    def rows_side(self) -> int:
        return self.side // self.image.merge_size

    def layout(self, header: ImageHeader | VideoHeader) -> MediaLayout:
        assert isinstance(header, ImageHeader), "a video came to a model that takes none"
        down, across, fitted = self._best(header.height, header.width)
        canvas = (down * self.tile, across * self.tile)
        corner = ((canvas[0] - fitted[0]) // 2, (canvas[1] - fitted[1]) // 2)
        tile = (self.tile, self.tile)
        views = (View.whole(tile), View(resized=fitted, canvas=canvas, tile=tile, offset=corner))
        grids = ((1, self.side, self.side), (down * across, self.side, self.side))
        made_of = f"{fingerprint(self.image, canvas)} views={views!r} global, separator, tiles in lines"
        return MediaLayout(views, grids, self._rows(1, 1) + 1 + self._rows(down, across), made_of)

    def _best(self, height: int, width: int) -> tuple[int, int, Size]:
        """The canvas that keeps the most pixels of a picture, the one with the least padding among equals; its fitted size."""
        found = []
        for down, across in self._allowed():
            high, wide = down * self.tile, across * self.tile
            scale = min(high / height, wide / width)
            fitted = (max(1, min(high, int(height * scale))), max(1, min(wide, int(width * scale))))
            kept = min(fitted[0] * fitted[1], height * width)
            found.append((-kept, high * wide - kept, down, across, fitted))
        _, _, down, across, fitted = min(found)
        return down, across, fitted

    def _allowed(self) -> list[Size]:
        """Canvases of at most max_pixels, or the smallest."""
        fits = [(down, across) for down, across in self.canvases if down * across * self.tile**2 <= self.image.max_pixels]
        return fits or [min(self.canvases, key=lambda canvas: canvas[0] * canvas[1])]

    def _rows(self, down: int, across: int) -> int:
        return down * self.rows_side * (across * self.rows_side + 1)

    def arrange(self, item: MediaItem) -> NDArray[np.int64]:
        canvas = item.views[1].canvas
        lines = [*self._lines(1, 1, 0), np.array([SEPARATOR])]
        lines += self._lines(canvas[0] // self.tile, canvas[1] // self.tile, self.rows_side**2)
        return np.concatenate(lines).astype(np.int64)

    def _lines(self, down: int, across: int, first: int) -> list[NDArray[np.int64]]:
        """Of tiles that follow one another from row `first` on."""
        side = self.rows_side
        numbers = first + np.arange(down * across * side**2).reshape(down, across, side, side)
        joined = numbers.transpose(0, 2, 1, 3).reshape(down * side, across * side)
        return [np.append(line, NEWLINE) for line in joined]

    def placeholders(self, kind: Literal["image", "video"]) -> tuple[str, ...]:
        return (PAD,) if kind == "image" else ("<|video_pad|>",)

    def prompt_form(self, item: MediaItem) -> PromptForm:
        return PromptForm(PAD, (item.rows,))

    def positions(self, item: MediaItem, span: MediaSpan) -> RunPositions:
        """Rows are numbered as text."""
        return RunPositions(np.tile(np.arange(span.count, dtype=np.int32), (3, 1)), span.count)

    def most_patches_at_once(self) -> int:
        return self.side**2

    def most_patches_per_item(self) -> int:
        return self.side**2 * (1 + max(down * across for down, across in self._allowed()))


def read_processor(files: ProcessorFiles, spec: Spec) -> TilesProcessor:
    vision = spec.vision
    assert isinstance(vision, TileTowerSpec)
    canvases = tuple((down, across) for down, across in files.image.take("canvases"))
    mean, std = files.image.numbers("image_mean"), files.image.numbers("image_std")
    files.done()
    return TilesProcessor(
        image=PatchSpec(
            min_pixels=vision.tile_size**2,
            max_pixels=max(down * across for down, across in canvases) * vision.tile_size**2,
            patch_size=vision.patch_size,
            temporal_patch_size=1,
            merge_size=vision.merge_size,
            mean=(mean[0], mean[1], mean[2]),
            std=(std[0], std[1], std[2]),
        ),
        video=None,
        tile=vision.tile_size,
        canvases=canvases,
    )
