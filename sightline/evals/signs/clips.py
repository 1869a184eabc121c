"""Short clips: a shape that moves, or a sign that appears and stays for the last two frames at least."""

from dataclasses import replace
from random import Random

import numpy as np
from PIL import Image

from sightline.evals.signs import phrasings
from sightline.evals.signs.backdrop import Size, backdrop, photograph
from sightline.evals.signs.example import Pixels, Split, Turn
from sightline.evals.signs.fonts import FONTS
from sightline.evals.signs.lettering import draw_sign
from sightline.evals.signs.palette import COLOURS, colours_on, scene_ground, shade
from sightline.evals.signs.reading import text_that_fits
from sightline.evals.signs.shapes import KINDS, Shape, draw_shape

CLIP_SIZE: Size = (64, 96)
DIRECTIONS = ("left", "right", "up", "down")
FRAME_COUNTS = (4, 6, 8)  # even: towers see frames in pairs
_MAX_CHARACTERS = 5


def make_clip(random: Random, split: Split, level: float) -> tuple[Pixels, tuple[Turn, ...]]:
    count = random.choice(FRAME_COUNTS) if level >= 0.25 else FRAME_COUNTS[0]
    if random.random() < 0.6:
        path, still, turns = make_motion(random, level, count)
        return _film(random, path, still, level), turns
    return _appearing(random, split, level, count)


def make_motion(random: Random, level: float, count: int) -> tuple[list[Shape], list[Shape], tuple[Turn, ...]]:
    """The moving shape at each frame, shapes that stand still, and the questions."""
    height, width = CLIP_SIZE
    direction = random.choice(DIRECTIONS)
    across = direction in ("left", "right")
    kind, *others = random.sample(KINDS, 2)
    radius = random.uniform(14 - 4 * level, 14)
    room = (width if across else height) - 2 * radius - 4  # pixels the centre can move
    way = room * random.uniform(1 - 0.35 * level, 1)
    start = random.uniform(0, room - way)
    steps = [radius + 2 + start + way * number / (count - 1) for number in range(count)]
    if direction in ("left", "up"):
        steps.reverse()
    still: list[Shape] = []
    if level > 0.6 and across and random.random() < 0.4:  # one above or below the way
        radius = min(radius, 11.5)
        upper = random.random() < 0.5
        lane, other = (14.0, 48.0) if upper else (48.0, 14.0)
        still.append(Shape(others[0], "", random.uniform(14, width - 14), other, radius))
    else:
        lane = random.uniform(radius + 2, (height if across else width) - radius - 2)
    path = [Shape(kind, "", *((step, lane) if across else (lane, step)), radius) for step in steps]
    colour = random.choice(tuple(COLOURS))
    turns = [Turn(random.choice(phrasings.DIRECTION).format(shape=kind), direction)]
    if random.random() < 0.3:
        turns.append(Turn(random.choice(phrasings.COLOUR).format(shape=kind), colour))
    return [replace(shape, colour=colour) for shape in path], still, tuple(turns)


def _film(random: Random, path: list[Shape], still: list[Shape], level: float) -> Pixels:
    """[frames, height, width, 3] on a ground that the moving shape's colour stands out from."""
    grounds = scene_ground(random)
    while path[0].colour not in colours_on(grounds[0]):
        grounds = scene_ground(random)
    behind = backdrop(random, CLIP_SIZE, grounds, level)
    for shape in still:
        draw_shape(behind, shape, COLOURS[random.choice(colours_on(grounds[0]))])
    paint = shade(random, COLOURS[path[0].colour], round(12 * level))
    frames = []
    for shape in path:
        frame = behind.copy()
        draw_shape(frame, shape, paint)
        frames.append(photograph(random, frame, 0.6 * level, shape.radius / 5, jpeg=False))
    return np.stack(frames)


def _appearing(random: Random, split: Split, level: float, count: int) -> tuple[Pixels, tuple[Turn, ...]]:
    """At once, fading in, or from the left; complete at frame `done` and after."""
    font = random.choice(FONTS[split])
    lines, size = text_that_fits(random, font, 1 + round((_MAX_CHARACTERS - 1) * level), (CLIP_SIZE,))
    sign = draw_sign(random, lines, font, size, level)
    done = random.randint(1, count - 2)
    manner = random.choice(("at once", "fading", "from the left"))
    frames = []
    for number in range(count):
        share = 1.0 if number >= done else 0.0 if manner == "at once" else number / done
        if manner == "from the left":
            frame = sign.blank.copy()
            frame.paste(sign.full.crop((0, 0, round(share * size[1]), size[0])), (0, 0))
        else:
            frame = Image.blend(sign.blank, sign.full, share)
        frames.append(photograph(random, frame, 0.6 * level, sign.stroke, jpeg=False))
    return np.stack(frames), (Turn(random.choice(phrasings.READ_CLIP), " ".join(lines)),)
