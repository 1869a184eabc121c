"""What lies behind text and shapes, and what a camera does to a picture afterwards."""

import functools
import io
from random import Random

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFilter

from sightline.evals.signs.example import Pixels
from sightline.evals.signs.palette import RGB

Size = tuple[int, int]  # (height, width)
_BANK = 512  # side of the noise that all pictures cut theirs from: drawing it afresh would take longer than all the rest


def backdrop(random: Random, size: Size, colours: tuple[RGB, RGB], level: float) -> Image.Image:
    """Plain, a gradient, grain or blurred blobs, all between the two colours."""
    height, width = size
    kinds = ("plain", "gradient", "grain", "blobs") if level >= 0.25 else ("plain",)
    kind = random.choice(kinds)
    share: NDArray[np.floating]  # [height, width], of the second colour
    if kind == "plain":
        return Image.new("RGB", (width, height), colours[0])
    if kind == "gradient":
        across, down = random.uniform(-1, 1), random.uniform(-1, 1)
        ramp = across * np.linspace(-0.5, 0.5, width)[None, :] + down * np.linspace(-0.5, 0.5, height)[:, None]
        share = 0.5 + ramp / (abs(across) + abs(down) + 1e-6)
    elif kind == "grain":
        share = 0.5 + 0.25 * _noise(random, height, width)
    else:
        coarse = np.array([[random.random() for _ in range(max(2, width // 32))] for _ in range(max(2, height // 24))])
        small = Image.fromarray((255 * coarse).astype(np.uint8))
        share = np.asarray(small.resize((width, height), Image.Resampling.BICUBIC)) / 255
    mask = Image.fromarray((255 * np.clip(share, 0, 1)).astype(np.uint8))
    return Image.composite(Image.new("RGB", mask.size, colours[1]), Image.new("RGB", mask.size, colours[0]), mask)


def photograph(random: Random, picture: Image.Image, level: float, stroke: float, jpeg: bool = True) -> Pixels:
    """[height, width, 3]: blurred by at most a share of `stroke` (pixels: the finest detail), grainy, compressed; or clean."""
    wear = max(0.0, level - 0.15) / 0.85
    if random.random() < 0.5 * wear:
        picture = picture.filter(ImageFilter.GaussianBlur(random.uniform(0.2, 0.34 * stroke * wear + 0.2)))
    if random.random() < 0.4 * wear:
        strength = random.uniform(2, 11) * wear
        grain = strength * _noise(random, picture.height, picture.width)
        picture = Image.fromarray(np.clip(np.asarray(picture) + grain[:, :, None], 0, 255).astype(np.uint8))
    if jpeg and random.random() < 0.4 * wear:
        encoded = io.BytesIO()
        picture.save(encoded, "JPEG", quality=random.randint(round(95 - 45 * wear), 95))
        picture = Image.open(encoded)
    return np.array(picture)


@functools.cache
def _bank() -> NDArray[np.float32]:
    return np.random.default_rng(20).standard_normal((_BANK, _BANK), np.float32)


def _noise(random: Random, height: int, width: int) -> NDArray[np.float32]:
    """[height, width] of standard normal noise."""
    top, left = random.randrange(_BANK - height + 1), random.randrange(_BANK - width + 1)
    sign = random.choice((-1, 1))
    return sign * _bank()[top : top + height, left : left + width]
