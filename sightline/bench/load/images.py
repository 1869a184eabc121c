"""Pictures to send: sizes by name, contents from a seed, encoded as users' files are."""

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from sightline.bench.load.body import Medium
from sightline.bench.load.ranges import IntRange, as_range, int_range
from sightline.bench.load.screens import screen
from sightline.errors import ConfigError

Content = Literal["noise", "photo", "random", "blank", "screen"]  # random: noise, as sglang.bench_serving calls it
Format = Literal["jpeg", "png", "webp"]

RESOLUTIONS = {  # width, height
    "360p": (640, 360),
    "720p": (1280, 720),
    "1080p": (1920, 1080),
    "2k": (2560, 1440),
    "4k": (3840, 2160),
}
_MOST_PIXELS_ON_A_SIDE = {"jpeg": 65535, "png": 65535, "webp": 16383}


@dataclass(frozen=True)
class ImageKind:
    """How the pictures of a run look."""

    resolution: str = "1080p"  # a name of RESOLUTIONS, height x width, or a range that both sides are drawn from
    content: Content = "photo"
    format: Format = "jpeg"
    quality: int = 85

    def __post_init__(self) -> None:
        most = _MOST_PIXELS_ON_A_SIDE[self.format]
        if max(side.high for side in self.sides) > most:
            raise ConfigError(
                f"The resolution {self.resolution!r} is too large: {self.format} files have at most {most} a side."
            )
        if not 1 <= self.quality <= 100:
            raise ConfigError(f"The image quality is {self.quality}, but must be from 1 to 100.")

    @property
    def sides(self) -> tuple[IntRange, IntRange]:
        """Width, height."""
        if re.fullmatch(r"\d+-\d+", self.resolution):
            both = _side_range(self.resolution)
            return both, both
        width, height = parse_resolution(self.resolution)
        return as_range(width), as_range(height)

    def size(self, random: np.random.Generator) -> tuple[int, int]:
        """Width, height of one picture."""
        width, height = self.sides
        return (width.low, height.low) if width.is_one and height.is_one else (width.draw(random), height.draw(random))


def _side_range(text: str) -> IntRange:
    try:
        sides = int_range(text)
    except ValueError as error:
        raise ConfigError(f"The resolution {text!r} is none: {error}.") from None
    if sides.low < 1:
        raise ConfigError(f"The resolution {text!r} begins with {sides.low}, but a side has at least 1 pixel.")
    return sides


def parse_resolution(text: str) -> tuple[int, int]:
    """Width and height of a name, or of HEIGHTxWIDTH."""
    if text.lower() in RESOLUTIONS:
        return RESOLUTIONS[text.lower()]
    found = re.fullmatch(r"(\d{1,5})x(\d{1,5})", text.lower())
    if found is None or "0" in (found[1].lstrip("0") or "0", found[2].lstrip("0") or "0"):
        names = ", ".join(RESOLUTIONS)
        raise ConfigError(f"The resolution {text!r} is unknown: give one of {names}, or HEIGHTxWIDTH such as 560x560.")
    return int(found[2]), int(found[1])


def make_image(kind: ImageKind, seed: Sequence[int]) -> Medium:
    """Another picture for every seed, but for blank ones, which are all the same."""
    random = np.random.default_rng(seed)
    width, height = kind.size(random)
    pixels = _DRAWN[kind.content](random, width, height)
    buffer = io.BytesIO()
    options = {} if kind.format == "png" else {"quality": kind.quality}
    Image.fromarray(pixels).save(buffer, kind.format, **options)
    return Medium.of(buffer.getvalue(), f"image/{kind.format}")


def noise(random: np.random.Generator, width: int, height: int) -> NDArray[np.uint8]:
    """Independent pixels: what other benchmarks send. The files are several times larger than photographs of the same size."""
    return np.frombuffer(random.bytes(width * height * 3), np.uint8).reshape(height, width, 3)


def photo(random: np.random.Generator, width: int, height: int) -> NDArray[np.uint8]:
    """Noise at every scale, the finer the weaker, as in photographs; so its files have the sizes of photographs.

    Each octave is the one before, twice as large, plus new detail.
    """
    octaves = max(1, int(np.ceil(np.log2(max(width, height) / 3))))
    pixels = random.integers(0, 256, (3, 3, 3), dtype=np.uint8)
    for octave in range(1, octaves + 1):
        shrink = 2 ** (octaves - octave)
        size = (max(3, -(-width // shrink)), max(3, -(-height // shrink)))
        larger = np.asarray(Image.fromarray(pixels).resize(size, Image.Resampling.BICUBIC), np.int16)
        strength = max(3, int(64 * 0.6**octave))
        detail = random.integers(-strength, strength + 1, (size[1], size[0], 1), dtype=np.int16)  # equal in all colours: light
        pixels = np.clip(larger + detail, 0, 255).astype(np.uint8)
    return pixels[:height, :width]


def blank(random: np.random.Generator, width: int, height: int) -> NDArray[np.uint8]:
    """White."""
    return np.full((height, width, 3), 255, np.uint8)


_DRAWN = {"noise": noise, "random": noise, "photo": photo, "blank": blank, "screen": screen}
