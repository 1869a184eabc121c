"""Colours that have names, colours that can be told apart, and how strongly text stands out from its ground."""

from random import Random

RGB = tuple[int, int, int]

COLOURS: dict[str, RGB] = {
    "red": (215, 38, 38),
    "orange": (245, 138, 20),
    "yellow": (250, 218, 40),
    "green": (38, 160, 70),
    "cyan": (60, 205, 220),
    "blue": (38, 78, 212),
    "purple": (132, 48, 172),
    "pink": (248, 135, 190),
    "brown": (118, 70, 34),
    "black": (18, 18, 18),
    "white": (246, 246, 246),
}
# Behind shapes: none of them has a name that a question could mean.
_GROUNDS: tuple[RGB, ...] = (
    (228, 228, 232),
    (205, 205, 200),
    (150, 150, 155),
    (95, 98, 102),
    (52, 54, 60),
    (222, 210, 188),
    (190, 205, 218),
    (64, 74, 92),
)
_APART = 115.0  # Euclidean distance in RGB below which a shape would be lost on its ground


def shade(random: Random, colour: RGB, spread: int) -> RGB:
    """The colour with each channel off by at most `spread`."""
    red, green, blue = (min(255, max(0, part + random.randint(-spread, spread))) for part in colour)
    return red, green, blue


def mix(one: RGB, other: RGB, share: float) -> RGB:
    """`share` of the other colour in the one."""
    red, green, blue = (round(a + (b - a) * share) for a, b in zip(one, other, strict=True))
    return red, green, blue


def luminance(colour: RGB) -> float:
    """Relative luminance of an sRGB colour, 0 to 1 (WCAG 2)."""
    linear = [part / 3294.6 if part <= 10 else ((part / 255 + 0.055) / 1.055) ** 2.4 for part in colour]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: RGB, other: RGB) -> float:
    """WCAG's contrast ratio, 1 to 21."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def any_colour(random: Random) -> RGB:
    """A colour for text, plates and backdrops: half of the time a named one, as real signs have."""
    if random.random() < 0.5:
        return shade(random, random.choice(list(COLOURS.values())), 16)
    return random.randrange(256), random.randrange(256), random.randrange(256)


def ink_and_grounds(random: Random, least: float) -> tuple[RGB, RGB, RGB]:
    """An ink and two grounds, both of which it stands out from by at least `least` (4.5 at most: black or white reach it)."""
    ground = any_colour(random)
    other = mix(ground, any_colour(random), random.uniform(0.0, 0.6))
    for _ in range(12):
        ink = any_colour(random)
        if contrast(ink, ground) >= least:
            break
    else:
        ink = max(((0, 0, 0), (255, 255, 255)), key=lambda extreme: contrast(extreme, ground))
    return ink, ground, other if _lies_beyond(ink, ground, other, least) else ground


def _lies_beyond(ink: RGB, ground: RGB, other: RGB, least: float) -> bool:
    """Whether all mixtures of the two grounds are lighter than the ink, or all are darker, and by enough."""
    mixtures = [mix(ground, other, share) for share in (0.0, 0.35, 0.65, 1.0)]
    lighter = {luminance(mixture) > luminance(ink) for mixture in mixtures}
    return len(lighter) == 1 and all(contrast(ink, mixture) >= least for mixture in mixtures)


def scene_ground(random: Random) -> tuple[RGB, RGB]:
    """Two neighbouring grounds to lie behind shapes."""
    ground = shade(random, random.choice(_GROUNDS), 6)
    return ground, shade(random, ground, 16)


def colours_on(ground: RGB) -> list[str]:
    """Names of the colours that shapes on this ground may have."""
    return [name for name, colour in COLOURS.items() if _distance(colour, ground) >= _APART]


def _distance(one: RGB, other: RGB) -> float:
    return float(sum((a - b) ** 2 for a, b in zip(one, other, strict=True)) ** 0.5)
