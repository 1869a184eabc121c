"""To which size an image or a video is resized: sides that are multiples of a factor, an area within a budget.

The one idea: round both sides to the factor; if the area then leaves [min_pixels, max_pixels], scale the original by the square
root of how far it is off and round down (or up) instead. Rounding is Python's, half to even: 720 / 32 = 22.5 becomes 22.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

from sightline.errors import MediaError
from sightline.spec import PatchSpec
from sightline.types import Size

MAX_ASPECT = 200


@dataclass(frozen=True)
class PixelBudget(ABC):
    """Of what min_pixels and max_pixels are the area."""

    spec: PatchSpec

    @abstractmethod
    def size(self, height: int, width: int, frames: int) -> Size:
        """Of each picture of a clip of so many frames; an image is one."""

    @abstractmethod
    def most_pixels(self) -> int:
        """Of one picture."""

    @abstractmethod
    def most_clip_pixels(self, frames: int) -> int:
        """Of a clip of so many frames, whole temporal patches."""

    def _most(self, pictures: int) -> int:
        """Of so many pictures that share the budget, which two kinds exceed. The short side of narrow ones stays at the factor
        when the long one is shortened to sqrt(aspect * budget of a picture); and where the least is near the most, pictures
        are enlarged, which adds at most the factor to each side."""
        factor, most = self.spec.factor, self.spec.max_pixels
        narrow = min(MAX_ASPECT * factor**2 * pictures, factor * math.isqrt(MAX_ASPECT * most * pictures) + 1)
        return max(most, narrow, factor**2 * pictures, 2 * (self.spec.min_pixels + factor**2 * pictures))


@dataclass(frozen=True)
class PictureBudget(PixelBudget):
    """The budget is for one picture, however many there are."""

    def size(self, height: int, width: int, frames: int) -> Size:
        return smart_resize(height, width, self.spec.factor, self.spec.min_pixels, self.spec.max_pixels)

    def most_pixels(self) -> int:
        return self._most(1)

    def most_clip_pixels(self, frames: int) -> int:
        return self.most_pixels() * frames


@dataclass(frozen=True)
class ClipBudget(PixelBudget):
    """The budget is for all frames together; less than a temporal patch of them, such as a still, counts as one."""

    def size(self, height: int, width: int, frames: int) -> Size:
        spec, step = self.spec, self.spec.temporal_patch_size
        return smart_resize_clip(height, width, max(frames, step), step, spec.factor, spec.min_pixels, spec.max_pixels)

    def most_pixels(self) -> int:
        return self._most(self.spec.temporal_patch_size) // self.spec.temporal_patch_size

    def most_clip_pixels(self, frames: int) -> int:
        return self._most(frames)


def smart_resize(height: int, width: int, factor: int, min_pixels: int, max_pixels: int) -> Size:
    """(height, width) with the budget on one picture."""
    return _fit(height, width, 1, 1, factor, min_pixels, max_pixels)


def smart_resize_clip(
    height: int, width: int, frames: int, temporal_factor: int, factor: int, min_pixels: int, max_pixels: int
) -> Size:
    """(height, width) with the budget on all frames together. Sides below the factor are enlarged first, keeping the aspect."""
    if height < factor or width < factor:
        scale = max(factor / height, factor / width)
        height, width = int(height * scale), int(width * scale)
    return _fit(height, width, frames, round(frames / temporal_factor) * temporal_factor, factor, min_pixels, max_pixels)


def _fit(height: int, width: int, frames: int, rounded_frames: int, factor: int, min_pixels: int, max_pixels: int) -> Size:
    if max(height, width) > MAX_ASPECT * min(height, width):
        raise MediaError(f"A picture of {width}x{height} pixels is too narrow: the aspect ratio may be {MAX_ASPECT} at most.")
    new_height, new_width = round(height / factor) * factor, round(width / factor) * factor
    pixels = rounded_frames * new_height * new_width
    if pixels > max_pixels:
        shrink = math.sqrt(frames * height * width / max_pixels)
        new_height = max(factor, math.floor(height / shrink / factor) * factor)
        new_width = max(factor, math.floor(width / shrink / factor) * factor)
    elif pixels < min_pixels:
        grow = math.sqrt(min_pixels / (frames * height * width))
        new_height = math.ceil(height * grow / factor) * factor
        new_width = math.ceil(width * grow / factor) * factor
    return new_height, new_width
