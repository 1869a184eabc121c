"""Screenshots to send: a desktop of windows, menus, tables, forms and code, drawn from a seed.

Flat areas, sharp edges and small text, so that a PNG of one has the size of a real one and its decoder the same work. The
same seed gives the same pixels with the same Pillow; with another, whose letters may be drawn otherwise, it gives others.
"""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

import sightline.data
from sightline.bench.load.texts import random_words

_FONTS = Path(sightline.data.__file__).parent / "fonts"
_PLAIN, _BOLD, _FIXED = "Arimo-Regular.ttf", "Arimo-Bold.ttf", "Cousine-Regular.ttf"
_SYNTAX = ("#1f4e99", "#8a2b2b", "#2b6e3f", "#6b3fa0")
_ACCENTS = ("#2f6fde", "#1d8f6a", "#c2532d", "#7a4fc9", "#b0345f")
_KEYWORDS = "def return if else for in while import from class with as not and or None True False self".split()

Colour = str
Box = tuple[int, int, int, int]  # left, top, right, bottom


class _Theme(NamedTuple):
    desktop: Colour
    panel: Colour  # title bars, menus
    paper: Colour  # what is written on
    line: Colour
    text: Colour
    faint: Colour


_LIGHT = _Theme("#4a6a8a", "#e9ebee", "#ffffff", "#c9cdd3", "#1d1f23", "#7a8089")
_DARK = _Theme("#20262e", "#2b3038", "#1e2126", "#3d434d", "#dfe3ea", "#8b929d")


def screen(random: np.random.Generator, width: int, height: int) -> NDArray[np.uint8]:
    """[height, width, 3]."""
    image = Image.new("RGB", (width, height))
    _Screen(image, random).draw()
    return np.asarray(image)


@functools.lru_cache(maxsize=64)
def _font(name: str, size: int) -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(str(_FONTS / name), size, layout_engine=ImageFont.Layout.BASIC)


class _Screen:
    """A desktop: a bar at the bottom, and windows, of which the last one drawn is in front."""

    def __init__(self, image: Image.Image, random: np.random.Generator) -> None:
        self._image, self._pen, self._random = image, ImageDraw.Draw(image), random
        self._theme = _DARK if random.random() < 0.3 else _LIGHT
        self._accent = str(random.choice(_ACCENTS))
        self._size = int(random.integers(12, 16))  # of letters, in pixels
        self._step = self._size * 3 // 2  # from line to line

    def draw(self) -> None:
        width, height = self._image.size
        self._pen.rectangle((0, 0, width, height), self._theme.desktop)
        bar = min(2 * self._step, height)
        kinds: tuple[Callable[[Box], None], ...] = (self._code, self._table, self._form, self._page)
        count = 1 if min(width, height) < 400 else int(self._random.integers(2, 4))
        for kind in self._random.permutation(len(kinds))[:count]:
            self._window(self._place(width, height - bar), kinds[kind])
        if self._random.random() < 0.5:
            self._menu(width, height)
        self._pen.rectangle((0, height - bar, width, height), self._theme.panel)
        for left in range(self._step, width - 8 * self._step, 8 * self._step):
            if self._random.random() < 0.6:
                self._text((left, height - bar + self._step // 2), self._words(2), _PLAIN)
        self._text((width - 4 * self._step, height - bar + self._step // 2), self._number(99, "{}:{:02}"), _PLAIN)

    def _place(self, width: int, height: int) -> Box:
        """Where a window is: more than half of the screen each way."""
        wide, high = (int(side * self._random.uniform(0.55, 0.95)) for side in (width, height))
        left, top = (int(self._random.integers(0, rest + 1)) for rest in (width - wide, height - high))
        return left, top, left + wide, top + high

    def _window(self, box: Box, fill: Callable[[Box], None]) -> None:
        left, top, right, bottom = box
        title = top + 2 * self._step
        self._pen.rectangle(box, self._theme.paper, self._theme.line)
        self._pen.rectangle((left, top, right, title), self._theme.panel, self._theme.line)
        self._text((left + self._step, top + self._step // 2), self._words(3).title(), _BOLD)
        for number, colour in enumerate(("#e0443e", "#dea123", "#1aab29")):
            at = right - (3 - number) * self._step * 4 // 3
            self._pen.ellipse((at, top + self._step // 2, at + self._size, top + self._step // 2 + self._size), colour)
        inner = Image.new("RGB", (max(right - left - 2, 1), max(bottom - title - 2, 1)), self._theme.paper)
        outer, self._pen = self._pen, ImageDraw.Draw(inner)  # what a window shows ends at its edge
        fill((0, 0, *inner.size))
        self._pen = outer
        self._image.paste(inner, (left + 1, title + 1))

    def _menu(self, width: int, height: int) -> None:
        left, top = int(self._random.integers(0, width)), int(self._random.integers(0, height))
        entries = [self._words(2) for _ in range(self._random.integers(5, 12))]
        box = (left, top, left + 14 * self._step, top + (len(entries) + 1) * self._step)
        self._pen.rectangle(box, self._theme.panel, self._theme.line)
        chosen = int(self._random.integers(len(entries)))
        for number, entry in enumerate(entries):
            y = top + self._step // 2 + number * self._step
            if number == chosen:
                self._pen.rectangle((left + 2, y, box[2] - 2, y + self._step), self._accent)
            self._text((left + self._step, y), entry, _PLAIN, "#ffffff" if number == chosen else None)

    # ---- What windows show

    def _code(self, box: Box) -> None:
        indent = 0
        for number, y in enumerate(range(self._step // 2, box[3], self._step), int(self._random.integers(1, 900))):
            self._text((self._size // 2, y), f"{number:4d}", _FIXED, self._theme.faint)
            indent = max(0, min(6, indent + int(self._random.integers(-1, 2))))
            x = self._size * (4 + 2 * indent)
            for word in self._words(int(self._random.integers(0, 9))).split():
                kind = self._random.random()
                if kind < 0.2:
                    word = str(self._random.choice(_KEYWORDS))
                word = word + str(self._random.choice(["", "", "(", ")", " =", ".", ",", ":", "[0]"]))
                x = (
                    self._text((x, y), word, _FIXED, str(self._random.choice(_SYNTAX)) if kind < 0.4 else None)
                    + self._size // 2
                )

    def _table(self, box: Box) -> None:
        columns = [self._step * int(width) for width in self._random.integers(4, 10, 12)]
        for row, y in enumerate(range(0, box[3], self._step + 6)):
            if row == 0 or row % 2 == 0:
                self._pen.rectangle((0, y, box[2], y + self._step + 6), self._theme.panel)
            self._pen.line((0, y, box[2], y), self._theme.line)
            x = 0
            for number, width in enumerate(columns):
                said = self._words(1).title() if row == 0 or number == 0 else self._number(99_999, "{}.{:02}")
                self._text((x + 4, y + 3), said, _BOLD if row == 0 else _PLAIN)
                x += width
                self._pen.line((x, y, x, y + self._step + 6), self._theme.line)

    def _form(self, box: Box) -> None:
        for y in range(self._step, box[3], 3 * self._step):
            self._text((self._step, y), self._words(2).capitalize() + ":", _PLAIN)
            field = (box[2] // 4, y - 4, box[2] * 3 // 4, y + self._step + 4)
            kind = self._random.random()
            if kind < 0.6:
                self._pen.rectangle(field, self._theme.paper, self._theme.line)
                self._text((field[0] + 6, y), self._words(int(self._random.integers(1, 6))), _PLAIN)
            elif kind < 0.8:
                self._pen.rectangle((field[0], y, field[0] + self._size, y + self._size), self._theme.paper, self._theme.text)
                self._text((field[0] + 2 * self._size, y), self._words(4), _PLAIN)
            else:
                self._pen.rounded_rectangle((field[0], y - 4, field[0] + 8 * self._step, y + self._step + 4), 6, self._accent)
                self._text((field[0] + self._step, y), self._words(2).title(), _BOLD, "#ffffff")

    def _page(self, box: Box) -> None:
        """A document: a heading, paragraphs, links, and a chart of bars."""
        y = self._step
        while y < box[3]:
            y = self._heading(y)
            if self._random.random() < 0.35:
                for bar in range(int(self._random.integers(5, 20))):
                    high, x = int(self._random.integers(10, 8 * self._step)), (2 + 2 * bar) * self._step
                    self._pen.rectangle((x, y + 8 * self._step - high, x + self._step, y + 8 * self._step), self._accent)
                y += 9 * self._step
            for _ in range(int(self._random.integers(2, 8))):
                link = self._random.random() < 0.1
                self._text(
                    (self._step, y), self._words(max(1, box[2] // (7 * self._size))), _PLAIN, self._accent if link else None
                )
                y += self._step

    def _heading(self, y: int) -> int:
        self._pen.text((self._step, y), self._words(4).title(), self._theme.text, _font(_BOLD, 2 * self._size))
        return y + 2 * self._step

    # ---- Letters

    def _words(self, count: int) -> str:
        return random_words(self._random, count)

    def _number(self, below: int, form: str) -> str:
        return form.format(*(int(number) for number in self._random.integers(0, (below, 60))))

    def _text(self, at: tuple[int, int], text: str, font: str, colour: Colour | None = None) -> int:
        """Where it ends, from the left."""
        found = _font(font, self._size)
        self._pen.text(at, text, colour or self._theme.text, found)
        return at[0] + int(found.getlength(text))
