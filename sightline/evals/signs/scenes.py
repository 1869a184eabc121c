"""Scenes of coloured shapes: their colours, kinds, numbers and places are asked for."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from PIL import Image

from sightline.evals.signs import phrasings
from sightline.evals.signs.backdrop import Size, backdrop, photograph
from sightline.evals.signs.example import Pixels, Turn
from sightline.evals.signs.palette import COLOURS, RGB, colours_on, scene_ground, shade
from sightline.evals.signs.shapes import KINDS, Shape, draw_shape

SCENE_SIZES: tuple[Size, ...] = ((128, 128), (128, 160))
PLACES = ("top left", "top", "top right", "left", "centre", "right", "bottom left", "bottom", "bottom right")
MAX_COUNT = 6
_GAP = 3  # pixels between two shapes
Kind = tuple[str, str]  # (kind, colour) of a shape that has no place yet


@dataclass(frozen=True)
class Scene:
    size: Size
    grounds: tuple[RGB, RGB]
    shapes: tuple[Shape, ...]


def plural(kind: str) -> str:
    return kind + ("es" if kind == "cross" else "s")


def draw_scene(random: Random, scene: Scene, level: float) -> Image.Image:
    picture = backdrop(random, scene.size, scene.grounds, level)
    for shape in scene.shapes:
        draw_shape(picture, shape, shade(random, COLOURS[shape.colour], round(12 * level)))
    return picture


def picture_of(random: Random, scene: Scene, level: float) -> Pixels:
    finest = min((shape.radius for shape in scene.shapes), default=10.0) / 5
    return photograph(random, draw_scene(random, scene, level), level, finest)


def make_scene(random: Random, skill: str, level: float) -> tuple[Scene, tuple[Turn, ...]]:
    """A scene for "colour", "shape", "count" or "locate", and its questions."""
    size = random.choice(SCENE_SIZES) if level >= 0.25 else SCENE_SIZES[0]
    grounds = scene_ground(random)
    colours = colours_on(grounds[0])
    if skill == "count":
        kinds, turns = _counted(random, colours, level)
        return Scene(size, grounds, place(random, kinds, size, level)), turns
    if skill == "locate":
        shapes, turns = _located(random, colours, size, level)
        return Scene(size, grounds, shapes), turns
    several = 1 + random.randint(0, round(5 * level))
    if skill == "colour":
        kinds, turns = _coloured(random, colours, several)
    else:
        kinds, turns = _shaped(random, colours, several)
    return Scene(size, grounds, place(random, kinds, size, level)), turns


def place(random: Random, kinds: Sequence[Kind], size: Size, level: float) -> tuple[Shape, ...]:
    """Shapes that neither touch each other nor the rim, as large as there is room for."""
    height, width = size
    largest = min(0.4 * min(size), math.sqrt(height * width / max(1, len(kinds))) * 0.36)
    smallest = max(11.0, largest * (0.9 - 0.35 * level))
    while True:
        placed: list[Shape] = []
        for kind, colour in kinds:
            for _ in range(30):
                radius = random.uniform(smallest, largest)
                rim = radius + 2
                x, y = random.uniform(rim, width - rim), random.uniform(rim, height - rim)
                if all(math.hypot(x - other.x, y - other.y) >= radius + other.radius + _GAP for other in placed):
                    placed.append(Shape(kind, colour, x, y, radius, _angle(random, level)))
                    break
        if len(placed) == len(kinds):
            return tuple(placed)
        largest = max(11.5, 0.88 * largest)
        smallest = max(11.0, 0.88 * smallest)


def _angle(random: Random, level: float) -> float:
    return math.radians(random.uniform(-15, 15)) * level


def _coloured(random: Random, colours: Sequence[str], several: int) -> tuple[list[Kind], tuple[Turn, ...]]:
    """Asks for the colours of shapes that are the only ones of their kind."""
    target = random.choice(KINDS)
    others = [kind for kind in KINDS if kind != target]
    kinds = [(target, random.choice(colours))] + [(random.choice(others), random.choice(colours)) for _ in range(several - 1)]
    number = Counter(kind for kind, _ in kinds)
    single = [pair for pair in kinds if number[pair[0]] == 1]
    turns = []
    for kind, colour in random.sample(single, _turns(random, len(single))):
        name = "shape" if several == 1 and random.random() < 0.3 else kind
        turns.append(Turn(random.choice(phrasings.COLOUR).format(shape=name), colour))
    random.shuffle(kinds)
    return kinds, tuple(turns)


def _shaped(random: Random, colours: Sequence[str], several: int) -> tuple[list[Kind], tuple[Turn, ...]]:
    """Asks for the kinds of shapes that are the only ones of their colour."""
    target = random.choice(colours)
    others = [colour for colour in colours if colour != target]
    kinds = [(random.choice(KINDS), target)] + [(random.choice(KINDS), random.choice(others)) for _ in range(several - 1)]
    number = Counter(colour for _, colour in kinds)
    single = [pair for pair in kinds if number[pair[1]] == 1]
    turns = [
        Turn(random.choice(phrasings.SHAPE).format(colour=colour), kind)
        for kind, colour in random.sample(single, _turns(random, len(single)))
    ]
    random.shuffle(kinds)
    return kinds, tuple(turns)


def _counted(random: Random, colours: Sequence[str], level: float) -> tuple[list[Kind], tuple[Turn, ...]]:
    """Asks how many shapes of a kind, of a colour or in all there are; each number up to MAX_COUNT is as likely."""
    most = 1 + round((MAX_COUNT - 1) * level)
    count = 0 if random.random() < 0.05 * level else random.randint(1, most)
    what = random.choices(("kind", "colour", "all"), (60, 25, 15))[0]
    kind, colour = random.choice(KINDS), random.choice(colours)
    least = 1 if count == 0 else 0  # a picture of nothing would be no question
    extra = 0 if what == "all" and count else random.randint(least, max(least, round(3 * level)))
    if what == "kind":
        kinds = [(kind, random.choice(colours)) for _ in range(count)]
        kinds += [(random.choice([other for other in KINDS if other != kind]), random.choice(colours)) for _ in range(extra)]
        things = plural(kind)
    elif what == "colour":
        kinds = [(random.choice(KINDS), colour) for _ in range(count)]
        kinds += [(random.choice(KINDS), random.choice([other for other in colours if other != colour])) for _ in range(extra)]
        things = f"{colour} shapes"
    else:
        count = max(1, count)
        kinds = [(random.choice(KINDS), random.choice(colours)) for _ in range(count)]
        things = "shapes"
    turns = [Turn(random.choice(phrasings.COUNT).format(things=things), str(count))]
    if len(kinds) <= MAX_COUNT and things != "shapes" and random.random() < 0.25 * level:
        turns.append(Turn(random.choice(phrasings.COUNT).format(things="shapes"), str(len(kinds))))
    random.shuffle(kinds)
    return kinds, tuple(turns)


def _located(random: Random, colours: Sequence[str], size: Size, level: float) -> tuple[tuple[Shape, ...], tuple[Turn, ...]]:
    """Shapes near the middles of different ninths of the picture, each kind once."""
    height, width = size[0] / 3, size[1] / 3
    several = 1 + random.randint(0, round(4 * level))
    cells = random.sample(range(9), several)
    shapes, turns = [], []
    for kind, cell in zip(random.sample(KINDS, several), cells, strict=True):
        radius = random.uniform(19 - 6 * level, 19)
        x = width * (cell % 3 + 0.5) + random.uniform(-1, 1) * 0.1 * width * level
        y = height * (cell // 3 + 0.5) + random.uniform(-1, 1) * 0.1 * height * level
        x, y = (min(max(at, radius + 1), side - radius - 1) for at, side in ((x, size[1]), (y, size[0])))
        shapes.append(Shape(kind, random.choice(colours), x, y, radius, _angle(random, level)))
    for number in random.sample(range(several), _turns(random, several)):
        shape = shapes[number]
        thing = f"{shape.colour} {shape.kind}" if random.random() < 0.3 else shape.kind
        turns.append(Turn(random.choice(phrasings.LOCATE).format(thing=thing), PLACES[cells[number]]))
    return tuple(shapes), tuple(turns)


def _turns(random: Random, most: int) -> int:
    """How many questions: mostly one, at most three."""
    return min(most, random.choices((1, 2, 3), (70, 20, 10))[0])
