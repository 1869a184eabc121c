"""Signs to read: one text or one phone number per picture."""

from random import Random

from sightline.evals.signs.backdrop import Size, photograph
from sightline.evals.signs.example import Pixels, Split, Turn
from sightline.evals.signs.fonts import FONTS
from sightline.evals.signs.lettering import draw_sign, fits
from sightline.evals.signs.phrasings import READ_PHONE, READ_SIGN
from sightline.evals.signs.words import MAX_CHARACTERS, glyph, phone_number, sign_lines

SIGN_SIZES: tuple[Size, ...] = ((64, 64), (64, 128), (64, 192), (64, 256), (96, 256), (128, 256))
PHONE_SIZES: tuple[Size, ...] = ((64, 192), (64, 256), (96, 256))
_CAPTIONS = ("CALL", "Call", "TEL", "Tel.", "PHONE", "Phone", "Info", "TAXI", "Pizza", "HELP", "Rent", "For sale", "SALE")


def make_sign(random: Random, split: Split, level: float) -> tuple[Pixels, Turn]:
    font = random.choice(FONTS[split])
    lines: tuple[str, ...] = (glyph(random),)
    size = SIGN_SIZES[0]
    if level >= 0.02:
        lines, size = text_that_fits(random, font, 1 + round((MAX_CHARACTERS - 1) * level), SIGN_SIZES)
    return render(random, lines, font, size, level), Turn(random.choice(READ_SIGN), " ".join(lines))


def make_phone(random: Random, split: Split, level: float) -> tuple[Pixels, Turn]:
    """Sometimes a word stands above the number, which is no part of the answer."""
    font = random.choice(FONTS[split])
    captioned = level >= 0.5 and random.random() < 0.2
    while True:
        number = phone_number(random, level)
        lines = (random.choice(_CAPTIONS), number) if captioned else (number,)
        if sizes := [size for size in PHONE_SIZES if fits(lines, font, size)]:
            break
    return render(random, lines, font, random.choice(sizes), level), Turn(random.choice(READ_PHONE), number)


def text_that_fits(random: Random, font: str, most: int, sizes: tuple[Size, ...]) -> tuple[tuple[str, ...], Size]:
    """Text of at most `most` characters and one of the sizes, small ones more often."""
    while True:
        lines = sign_lines(random, most)
        if fitting := [size for size in sizes if fits(lines, font, size)]:
            return lines, fitting[0] if random.random() < 0.5 else random.choice(fitting)


def render(random: Random, lines: tuple[str, ...], font: str, size: Size, level: float) -> Pixels:
    sign = draw_sign(random, lines, font, size, level)
    return photograph(random, sign.full, level, sign.stroke)
