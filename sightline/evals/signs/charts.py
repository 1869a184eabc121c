"""Bar charts: which bar is the highest or the lowest, how high one is, how many there are."""

from dataclasses import dataclass
from random import Random

from PIL import Image, ImageDraw

from sightline.evals.signs import phrasings
from sightline.evals.signs.backdrop import Size, photograph
from sightline.evals.signs.example import Pixels, Split, Turn
from sightline.evals.signs.fonts import FONTS, load_font
from sightline.evals.signs.palette import COLOURS, RGB, contrast, shade

CHART_SIZE: Size = (160, 192)
MAX_BARS = 5
TOP, BASE, LEFT, RIGHT = 12, 136, 28, 186  # the plot, in pixels: y of the largest value and of 0, x of its sides
_LETTERS = "ABCDEFGHJKLMNPQRSTUVWXYZ"
_LABELS = (
    ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"),
    ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul"),
    ("cat", "dog", "fox", "hen", "pig", "cow", "bee"),
    ("tea", "fig", "nut", "egg", "jam", "pie", "ham"),
)
_PAPER: tuple[RGB, ...] = ((255, 255, 255), (246, 244, 236), (232, 238, 244), (40, 42, 50))


@dataclass(frozen=True)
class Chart:
    labels: tuple[str, ...]
    values: tuple[int, ...]  # 1 to the top of the axis
    top: int  # value at the upper end of the axis: 5 or 10
    paint: tuple[RGB, ...]  # one colour per bar
    paper: RGB
    font: str

    def bar(self, number: int) -> tuple[int, int, int, int]:
        """Left, top, right and bottom pixel of a bar, all inclusive."""
        share = (RIGHT - LEFT) / len(self.labels)
        left = LEFT + (number + 0.5) * share - min(0.34 * share, 16)
        right = LEFT + (number + 0.5) * share + min(0.34 * share, 16)
        return round(left), self.height_of(self.values[number]), round(right), BASE

    def height_of(self, value: int) -> int:
        """The y of a value, in pixels."""
        return round(BASE - (BASE - TOP) * value / self.top)


def make_chart(random: Random, split: Split, level: float) -> tuple[Chart, tuple[Turn, ...]]:
    """The largest and the smallest value occur once each."""
    several = random.randint(2, 2 + round((MAX_BARS - 2) * level))
    top = random.choice((5, 10)) if level >= 0.5 else 5
    values = [random.randint(1, top) for _ in range(several)]
    while values.count(max(values)) > 1 or values.count(min(values)) > 1:
        values = [random.randint(1, top) for _ in range(several)]
    words = level >= 0.5 and several < MAX_BARS and random.random() < 0.4
    labels = random.sample(random.choice(_LABELS) if words else _LETTERS, several)
    if not words and random.random() < 0.5:
        labels = list(_LETTERS[:several])
    paper = random.choice(_PAPER)
    paints = [colour for colour in COLOURS.values() if contrast(colour, paper) > 1.6]
    if random.random() < 0.5:
        paint = [shade(random, random.choice(paints), 10)] * several
    else:
        paint = [shade(random, colour, 10) for colour in random.sample(paints, several)]
    chart = Chart(tuple(labels), tuple(values), top, tuple(paint), paper, random.choice(FONTS[split]))
    return chart, _questions(random, chart)


def _questions(random: Random, chart: Chart) -> tuple[Turn, ...]:
    asked = []
    bars = random.sample(range(len(chart.labels)), 2)  # whose values may be asked for
    for what in random.sample(("highest", "lowest", "value", "value", "bars"), random.choice((1, 1, 1, 2, 3))):
        if what == "highest":
            turn = Turn(random.choice(phrasings.HIGHEST), chart.labels[chart.values.index(max(chart.values))])
        elif what == "lowest":
            turn = Turn(random.choice(phrasings.LOWEST), chart.labels[chart.values.index(min(chart.values))])
        elif what == "bars":
            turn = Turn(random.choice(phrasings.BARS), str(len(chart.labels)))
        else:
            number = bars.pop()
            turn = Turn(random.choice(phrasings.VALUE).format(label=chart.labels[number]), str(chart.values[number]))
        asked.append(turn)
    return tuple(asked)


def draw_chart(chart: Chart) -> Image.Image:
    height, width = CHART_SIZE
    picture = Image.new("RGB", (width, height), chart.paper)
    pen = ImageDraw.Draw(picture)
    dark = sum(chart.paper) < 384
    ink, faint = ((240, 240, 240), (92, 94, 100)) if dark else ((20, 20, 20), (205, 205, 205))
    numbers = load_font(chart.font, 15)
    for value in range(chart.top + 1):
        y = chart.height_of(value)
        pen.line((LEFT, y, RIGHT, y), fill=faint)
        if value % (chart.top // 5) == 0:
            pen.line((LEFT - 3, y, LEFT, y), fill=ink)
            pen.text((LEFT - 6, y), str(value), fill=ink, font=numbers, anchor="rm")
    letters = load_font(chart.font, _label_em(chart))
    for number, (label, paint) in enumerate(zip(chart.labels, chart.paint, strict=True)):
        left, top, right, bottom = chart.bar(number)
        pen.rectangle((left, top, right, bottom), fill=paint)
        pen.text(((left + right) / 2, BASE + 17), label, fill=ink, font=letters, anchor="ms")
    pen.line((LEFT, TOP - 4, LEFT, BASE, RIGHT, BASE), fill=ink)
    return picture


def _label_em(chart: Chart) -> int:
    """The largest size at which labels leave room between them."""
    share = (RIGHT - LEFT) / len(chart.labels)
    for em in (20, 18, 16, 14):
        if max(load_font(chart.font, em).getlength(label) for label in chart.labels) <= share - 6:
            break
    return em


def picture_of_chart(random: Random, chart: Chart, level: float) -> Pixels:
    return photograph(random, draw_chart(chart), 0.7 * level, stroke=1.2)
