"""Shapes with soft edges, drawn one by one onto a picture."""

import math
from dataclasses import dataclass

from PIL import Image, ImageDraw

from sightline.evals.signs.palette import RGB

KINDS = ("circle", "square", "triangle", "star", "cross", "ring", "heart")
_FINE = 4  # each pixel of a mask is drawn as _FINE * _FINE


@dataclass(frozen=True)
class Shape:
    kind: str  # of KINDS
    colour: str  # of palette.COLOURS
    x: float  # centre, pixels from the left
    y: float  # centre, pixels from the top
    radius: float  # the whole shape is within it
    angle: float = 0.0  # radians


def draw_shape(picture: Image.Image, shape: Shape, paint: RGB) -> None:
    side = 2 * math.ceil(shape.radius) + 4
    left, top = math.floor(shape.x) - side // 2, math.floor(shape.y) - side // 2
    mask = Image.new("L", (side * _FINE, side * _FINE), 0)
    pen = ImageDraw.Draw(mask)
    x, y, radius = (shape.x - left) * _FINE, (shape.y - top) * _FINE, shape.radius * _FINE
    if shape.kind in ("circle", "ring"):
        radius *= 0.9  # looks as large as the others
        pen.ellipse((x - radius, y - radius, x + radius, y + radius), fill=255)
        if shape.kind == "ring":
            radius *= 0.55
            pen.ellipse((x - radius, y - radius, x + radius, y + radius), fill=0)
    else:
        sine, cosine = math.sin(shape.angle), math.cos(shape.angle)
        points = [
            (x + radius * (cosine * u - sine * v), y + radius * (sine * u + cosine * v)) for u, v in _OUTLINES[shape.kind]
        ]
        pen.polygon(points, fill=255)
    picture.paste(paint, (left, top), mask.reduce(_FINE))


def _polar(steps: int, radii: tuple[float, ...]) -> list[tuple[float, float]]:
    """Points around the centre, the first straight up, at radii taken in turn."""
    turns = [2 * math.pi * step / steps - math.pi / 2 for step in range(steps)]
    return [(radii[i % len(radii)] * math.cos(turn), radii[i % len(radii)] * math.sin(turn)) for i, turn in enumerate(turns)]


def _heart() -> list[tuple[float, float]]:
    """The curve x = 16 sin³t, y = 13 cos t - 5 cos 2t - 2 cos 3t - cos 4t, scaled into the unit circle."""
    points = []
    for step in range(40):
        t = 2 * math.pi * step / 40
        x = 16 * math.sin(t) ** 3
        y = 13 * math.cos(t) - 5 * math.cos(2 * t) - 2 * math.cos(3 * t) - math.cos(4 * t)
        points.append((x / 18.5, -(y + 2) / 18.5))
    return points


_ARM = 0.3  # half the width of a cross's arm
# Outlines in the unit circle, y pointing down.
_OUTLINES: dict[str, list[tuple[float, float]]] = {
    "square": [(-0.707, -0.707), (0.707, -0.707), (0.707, 0.707), (-0.707, 0.707)],
    "triangle": _polar(3, (1.0,)),
    "star": _polar(10, (1.0, 0.42)),
    "cross": [
        (-_ARM, -0.95), (_ARM, -0.95), (_ARM, -_ARM), (0.95, -_ARM), (0.95, _ARM), (_ARM, _ARM),
        (_ARM, 0.95), (-_ARM, 0.95), (-_ARM, _ARM), (-0.95, _ARM), (-0.95, -_ARM), (-_ARM, -_ARM),
    ],
    "heart": _heart(),
}  # fmt: skip
