"""Text on a plate or straight on a backdrop, turned and tilted, never smaller than a person can read.

The one idea: the sizes that fit follow from the text's box at one em and the angle; of the angles drawn, the first at which
capitals can still have MIN_CAPS pixels is taken, and 0 is the last one tried.
"""

import functools
import math
from dataclasses import dataclass
from random import Random

import numpy as np
from PIL import Image, ImageDraw

from sightline.evals.signs.backdrop import Size, backdrop
from sightline.evals.signs.fonts import cap_height, load_font
from sightline.evals.signs.palette import RGB, any_colour, ink_and_grounds

MIN_CAPS = 16  # pixels
_REFERENCE = 64  # em at which text is measured
_MARGIN = 3  # pixels that stay free on each side
_LINE = 1.15  # distance of two lines in ems


@dataclass(frozen=True)
class Sign:
    blank: Image.Image  # without the text
    full: Image.Image  # with it
    ink: Image.Image  # "L": where the text is
    stroke: float  # about the width of a stroke in pixels


@dataclass(frozen=True)
class _Setting:
    """How a text is set: all in pixels, at the em chosen."""

    em: int
    width: float
    height: float
    angle: float  # radians


def fits(lines: tuple[str, ...], font: str, size: Size) -> bool:
    """Whether the text can stand upright in a picture of (height, width) with capitals of MIN_CAPS."""
    return _largest_em(lines, font, size, 0.0, 0.0) * cap_height(font) >= MIN_CAPS


def draw_sign(random: Random, lines: tuple[str, ...], font: str, size: Size, level: float) -> Sign:
    """The text must fit (see `fits`)."""
    height, width = size
    plated = random.random() < 0.5 * (level >= 0.25)
    padding = random.uniform(0.15, 0.4) if plated else 0.0  # in ems
    if plated and _largest_em(lines, font, size, 0.0, padding) * cap_height(font) < MIN_CAPS:
        plated, padding = False, 0.0
    setting = _set(random, lines, font, size, padding, level)
    ink_colour, ground, other = ink_and_grounds(random, 4.5 - 0.9 * level)
    behind = (any_colour(random), any_colour(random)) if plated else (ground, other)
    blank = backdrop(random, size, behind, level)
    move = _transform(random, size, setting, level)
    if plated:
        _paste_plate(random, blank, setting, ground, ink_colour, move)
    ink = Image.new("L", (width, height), 0)
    _write(ImageDraw.Draw(ink), lines, font, setting.em, size)
    ink = _moved(ink, move)
    full = blank.copy()
    full.paste(ink_colour, mask=ink)
    return Sign(blank, full, ink, stroke=setting.em / 9)


def _paste_plate(
    random: Random, picture: Image.Image, setting: _Setting, ground: RGB, rim: RGB, move: tuple[float, ...] | None
) -> None:
    """A plate around where the text will stand; half of them have a rim in the text's colour."""
    width, height = picture.size
    left, top = (width - setting.width) / 2, (height - setting.height) / 2
    radius = random.uniform(0, 0.3) * setting.em
    plate = Image.new("L", picture.size, 0)
    ImageDraw.Draw(plate).rounded_rectangle((left, top, width - left - 1, height - top - 1), radius, fill=255)
    picture.paste(ground, mask=_moved(plate, move))
    if random.random() < 0.5:
        line = Image.new("L", picture.size, 0)
        box = left + 1, top + 1, width - left - 2, height - top - 2
        ImageDraw.Draw(line).rounded_rectangle(box, radius, outline=255, width=max(1, setting.em // 20))
        picture.paste(rim, mask=_moved(line, move))


@functools.lru_cache(maxsize=64)  # measuring costs as much as drawing, and the same text is measured for each size it may have
def _box(lines: tuple[str, ...], font: str, em: int) -> tuple[float, float, float, float]:
    """Left, top, right and bottom of the ink, with the first line's baseline starting at (0, 0); lines are centred."""
    face = load_font(font, em)
    boxes = [face.getbbox(line, anchor="ls") for line in lines]
    widest = max(box[2] - box[0] for box in boxes)
    return 0.0, boxes[0][1], widest, boxes[-1][3] + _LINE * em * (len(lines) - 1)


def _largest_em(lines: tuple[str, ...], font: str, size: Size, angle: float, padding: float) -> float:
    left, top, right, bottom = _box(lines, font, _REFERENCE)
    width = (right - left) / _REFERENCE + 2 * padding
    high = (bottom - top) / _REFERENCE + 2 * padding
    sine, cosine = abs(math.sin(angle)), math.cos(angle)
    return min(
        (size[1] - 2 * _MARGIN) / (width * cosine + high * sine), (size[0] - 2 * _MARGIN) / (width * sine + high * cosine)
    )


def _set(random: Random, lines: tuple[str, ...], font: str, size: Size, padding: float, level: float) -> _Setting:
    angle = math.radians(random.uniform(-10, 10)) * level if random.random() < 0.6 else 0.0
    least = MIN_CAPS / cap_height(font)
    for turn in (angle, angle / 2, angle / 4, 0.0):
        largest = _largest_em(lines, font, size, turn, padding)
        if largest >= 1.08 * least or turn == 0.0:
            break
    smallest = max(least, (0.9 - 0.4 * level) * largest)
    em = max(math.ceil(least), math.floor(random.uniform(min(smallest, largest), largest)))
    left, top, right, bottom = _box(lines, font, em)
    return _Setting(em, right - left + 2 * padding * em, bottom - top + 2 * padding * em, turn)


def _write(pen: ImageDraw.ImageDraw, lines: tuple[str, ...], font: str, em: int, size: Size) -> None:
    """Centres the ink of the lines in the picture."""
    face = load_font(font, em)
    _, top, _, bottom = _box(lines, font, em)
    baseline = round(size[0] / 2 - (top + bottom) / 2)
    for number, line in enumerate(lines):
        left, _, right, _ = face.getbbox(line, anchor="ls")
        at = round(size[1] / 2 - (left + right) / 2), baseline + round(_LINE * em * number)
        pen.text(at, line, fill=255, font=face, anchor="ls")


def _transform(random: Random, size: Size, setting: _Setting, level: float) -> tuple[float, ...] | None:
    """Coefficients that take a pixel of the moved picture to the one it comes from, or None if nothing moves.

    Moved by what room there is, turned by the angle; sometimes one side is further away (perspective).
    """
    height, width = size
    sine, cosine = math.sin(setting.angle), math.cos(setting.angle)
    taken = setting.width * cosine + setting.height * abs(sine), setting.width * abs(sine) + setting.height * cosine
    room = [
        max(0.0, (side - need) / 2 - _MARGIN) * min(1.0, 2 * level) for side, need in zip((width, height), taken, strict=True)
    ]
    right, down = round(random.uniform(-room[0], room[0])), round(random.uniform(-room[1], room[1]))
    far_x = far_y = 0.0
    # At a side of the text the scale is 1 ± far * distance; moving out of the picture must stay impossible.
    if level > 0.5 and random.random() < 0.3:
        spare = min(room[0] / width, room[1] / height)
        far_x = random.uniform(-1, 1) * min(0.12, spare) / (setting.width / 2)
        far_y = random.uniform(-1, 1) * min(0.06, spare) / (setting.height / 2)
        right = down = 0
    if not (right or down or sine or far_x or far_y):
        return None
    from_x, from_y = width / 2 + right, height / 2 + down
    to_x, to_y = width / 2, height / 2
    scale = 1 - far_x * from_x - far_y * from_y
    rows = np.array(
        [
            [cosine + to_x * far_x, sine + to_x * far_y, -cosine * from_x - sine * from_y + to_x * scale],
            [-sine + to_y * far_x, cosine + to_y * far_y, sine * from_x - cosine * from_y + to_y * scale],
            [far_x, far_y, scale],
        ]
    )
    return tuple(float(value) for value in (rows / scale).ravel()[:8])


def _moved(mask: Image.Image, coefficients: tuple[float, ...] | None) -> Image.Image:
    if coefficients is None:
        return mask
    return mask.transform(mask.size, Image.Transform.PERSPECTIVE, coefficients, Image.Resampling.BILINEAR)
