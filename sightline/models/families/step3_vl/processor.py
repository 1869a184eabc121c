"""What Step3-VL sees of an image: all of it as a square, and before that, of larger or elongated ones, windows at full detail.

```
picture ──► padded to a square with black, if it is a thin line ──► shrunk to a longest side of 3024
    │
    ├──► resized to whole windows ──► cut into them ──► each resized to 504 x 504       rows of windows, <patch_newline> between
    └──► resized to 728 x 728, whatever its shape                                      81 rows of a window, 169 of the whole
```

All resizes are Pillow's bilinear ones, to bytes. The model's own code makes the last resize of each view in floating point,
which changes a pixel by a step of 255 at most, and none of a window that is 504 pixels wide already.
"""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from sightline.errors import ConfigError, MediaError
from sightline.media.item import fingerprint
from sightline.media.sizes import MAX_ASPECT
from sightline.models import hf_config
from sightline.models.family import ProcessorFiles
from sightline.spec import ModelSpec, PatchSpec, ProcessorSpec
from sightline.types import (
    MOST_CANVAS_PIXELS,
    Grid,
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

PAD = "<im_patch>"
BLACK = (0, 0, 0)  # of canvases
_BILINEAR = 2  # Pillow's number
_LINE = 32, 4  # a picture narrower than this many pixels and this much longer than wide is padded to a square
_ELONGATED = 1.5  # pictures that fit into the whole view have windows if they are longer than this
_VERY_ELONGATED = 4  # larger ones have windows of their shorter side then
_LONGEST_LINE = MAX_ASPECT + 2  # windows of one as narrow as may be, once its shorter side was rounded down
_NEARLY_NOTHING = 0.2  # of a window: so much at the end of a side does not make another one


@dataclass(frozen=True)
class StepProcessor(ProcessorSpec):
    view: int  # pixels along a side of the whole picture as the model sees it
    window: int  # and of a window
    longest: int  # side of a picture; larger ones are shrunk

    def layout(self, header: ImageHeader | VideoHeader) -> MediaLayout:
        assert isinstance(header, ImageHeader), "a video came to a model that takes none"
        picture, (height, width) = self._picture(header.height, header.width)
        whole = View.whole((self.view, self.view), "bilinear", picture)
        windows = self._windows(picture, height, width)
        views = (whole,) if windows is None else (windows, whole)
        grids = tuple(self._grid(view) for view in views)
        rows = sum(math.prod(grid) for grid in grids) // self.image.merge_size**2
        made_of = f"{fingerprint(self.image, (self.view, self.view), 'bilinear')} views={views!r}"
        return MediaLayout(views, grids, rows, made_of)

    def _picture(self, height: int, width: int) -> tuple[View | None, Size]:
        """The picture that views are made of, and its size; None where it is as it comes."""
        padded = None
        shorter, longer = sorted((height, width))
        if shorter < _LINE[0] and longer > _LINE[1] * shorter:
            if longer**2 > MOST_CANVAS_PIXELS:
                most = math.isqrt(MOST_CANVAS_PIXELS)
                raise MediaError(
                    f"A picture of {width}x{height} pixels is too narrow: such lines may have {most} pixels at most."
                )
            padded = View((height, width), (longer, longer), (longer, longer), (0, 0), "bilinear", BLACK)
            height = width = longer
        size = self._scaled(height, width)
        if min(size) == 0 or max(size) > _LONGEST_LINE * min(size):
            raise MediaError(
                f"A picture of {width}x{height} pixels is too narrow: the aspect ratio may be {MAX_ASPECT} at most."
            )
        return (padded if size == (height, width) else View.whole(size, "bilinear", padded)), size

    def _scaled(self, height: int, width: int) -> Size:
        """Shrunk to the longest side. Where other areas are set than usual, shrunk or enlarged to those."""
        fitting = self.longest / max(height, width)
        size = _times(height, width, min(fitting, 1.0))
        area = size[0] * size[1]
        if area > self.image.max_pixels:
            return _times(height, width, math.sqrt(self.image.max_pixels / (height * width)))
        if area < self.image.min_pixels:
            return _times(height, width, min(math.sqrt(self.image.min_pixels / (height * width)), fitting))
        return size

    def _windows(self, picture: View | None, height: int, width: int) -> View | None:
        """None: the picture has none. What is narrower than a window lies at its top or left; the rest is black."""
        side = self._window_side(height, width)
        if side == 0:
            return None
        resized = _whole_windows(height, side), _whole_windows(width, side)
        canvas = max(resized[0], side), max(resized[1], side)
        windows = View(resized, canvas, (side, side), (0, 0), "bilinear", BLACK, picture)
        return windows if side == self.window else View.whole((self.window, self.window), "bilinear", windows)

    def _window_side(self, height: int, width: int) -> int:
        """0: no windows."""
        shorter, longer = sorted((height, width))
        if longer <= self.view:
            return shorter if longer / shorter > _ELONGATED else 0
        return min(shorter, self.window) if longer / shorter > _VERY_ELONGATED else self.window

    def _grid(self, view: View) -> Grid:
        return view.tiles, view.tile[0] // self.image.patch_size, view.tile[1] // self.image.patch_size

    def placeholders(self, kind: Literal["image", "video"]) -> tuple[str, ...]:
        return (PAD,)

    def prompt_form(self, item: MediaItem) -> PromptForm:
        *windows, (_, height, width) = item.grids
        text, runs = "", list[int]()
        for count, high, wide in windows:
            across = _windows_across(item.views[0])
            for number in range(1, count + 1):
                text += f"<patch_start>{PAD}<patch_end>"
                text += "<patch_newline>" if number % across == 0 and number < count else ""
            runs += [self._rows(high, wide)] * count
        return PromptForm(f"{text}<im_start>{PAD}<im_end>", (*runs, self._rows(height, width)))

    def _rows(self, height: int, width: int) -> int:
        return height * width // self.image.merge_size**2

    def positions(self, item: MediaItem, span: MediaSpan) -> RunPositions:
        """Rows are numbered as text."""
        return RunPositions(np.tile(np.arange(span.count, dtype=np.int32), (3, 1)), span.count)

    def most_patches_at_once(self) -> int:
        return (self.view // self.image.patch_size) ** 2

    def most_patches_per_item(self) -> int:
        """A line of windows, or a square of them, and the whole picture."""
        windows = max(_LONGEST_LINE, math.ceil(self.longest / self.window) ** 2)
        return windows * (self.window // self.image.patch_size) ** 2 + self.most_patches_at_once()


def _times(height: int, width: int, scale: float) -> Size:
    return int(height * scale), int(width * scale)


def _whole_windows(size: int, window: int) -> int:
    """The next whole number of windows, up or down; what is narrower than one stays as it is."""
    count, rest = size // window, size / window - size // window
    return size if count == 0 else window * (count + (rest > _NEARLY_NOTHING))


def _windows_across(view: View) -> int:
    """Of the view that has windows, or of windows that were resized."""
    while view.tile == view.canvas and view.of is not None:
        view = view.of
    return view.canvas[1] // view.tile[1]


def read_processor(files: ProcessorFiles, spec: ModelSpec) -> StepProcessor:
    """A checkpoint need not have the numbers: the model's own code fixes them."""
    fields, vision = files.image, spec.patch_tower
    patch, merge, grid = vision.patch_embed.patch_size, vision.merge_size, vision.position_grid
    assert grid is not None
    view = grid.side * patch
    if "size" in fields:
        size = fields.section("size")
        for name in ("height", "width"):
            size.must_be(name, view)
        size.done()
    window, longest = fields.integer("patch_size", 504), fields.integer("max_image_size", 3024)
    if window % (patch * merge) or view % (patch * merge) or not window <= view <= longest:
        raise ConfigError(
            f"{fields.name}: 'patch_size' {window} or 'max_image_size' {longest} does not fit views of {view} pixels."
        )
    fields.must_be("vision_patch_size", patch)
    fields.must_be("downsampler_stride", merge)
    fields.ignore("auto_map")  # the model's own code, which is not run
    means, stds = fields.numbers("image_mean", hf_config.CLIP_MEAN), fields.numbers("image_std", hf_config.CLIP_STD)
    if len(means) != 3 or len(stds) != 3 or 0.0 in stds:
        raise ConfigError(f"{fields.name}: 'image_mean' and 'image_std' must hold three numbers each, std none of them 0.")
    files.done(resample=_BILINEAR)
    return StepProcessor(
        image=PatchSpec(
            min_pixels=1,
            max_pixels=longest**2,
            patch_size=patch,
            temporal_patch_size=1,
            merge_size=merge,
            mean=(means[0], means[1], means[2]),
            std=(stds[0], stds[1], stds[2]),
        ),
        video=None,
        view=view,
        window=window,
        longest=longest,
    )
