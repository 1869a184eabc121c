"""Two images of one size: which of them has something, or what is written on each."""

from random import Random

from sightline.evals.signs import phrasings
from sightline.evals.signs.backdrop import Size
from sightline.evals.signs.example import Pixels, Split, Turn
from sightline.evals.signs.fonts import FONTS
from sightline.evals.signs.lettering import fits
from sightline.evals.signs.palette import colours_on, scene_ground
from sightline.evals.signs.reading import render, text_that_fits
from sightline.evals.signs.scenes import SCENE_SIZES, Kind, Scene, picture_of, place
from sightline.evals.signs.shapes import KINDS

ORDINALS = ("first", "second")
PAIR_SIZES: tuple[Size, ...] = ((64, 128), (64, 192))
_MAX_CHARACTERS = 8


def make_pair(random: Random, split: Split, level: float) -> tuple[tuple[Pixels, ...], tuple[Turn, ...]]:
    if random.random() < 0.5:
        return _signs(random, split, level)
    scenes, turns = make_scenes(random, level)
    return tuple(picture_of(random, scene, level) for scene in scenes), turns


def _signs(random: Random, split: Split, level: float) -> tuple[tuple[Pixels, ...], tuple[Turn, ...]]:
    most = 1 + round((_MAX_CHARACTERS - 1) * level)
    size = random.choice(PAIR_SIZES)
    fonts = [random.choice(FONTS[split]) for _ in ORDINALS]
    lines = [text_that_fits(random, font, most, (size,))[0] for font in fonts]
    while lines[0] == lines[1] or not fits(lines[1], fonts[1], size):
        lines[1] = text_that_fits(random, fonts[1], most, (size,))[0]
    texts = [" ".join(line) for line in lines]
    turns = []
    for what in random.choice((("both",), ("first",), ("second",), ("says",), ("first", "second"), ("says", "both"))):
        which = random.randrange(2)
        if what == "both":
            turns.append(Turn(random.choice(phrasings.READ_BOTH), ", ".join(texts)))
        elif what == "says":
            turns.append(Turn(random.choice(phrasings.WHICH_SAYS).format(text=texts[which]), ORDINALS[which]))
        else:
            turns.append(Turn(random.choice(phrasings.READ_ONE).format(ordinal=what), texts[ORDINALS.index(what)]))
    pictures = (render(random, line, font, size, level) for line, font in zip(lines, fonts, strict=True))
    return tuple(pictures), tuple(turns)


def make_scenes(random: Random, level: float) -> tuple[tuple[Scene, Scene], tuple[Turn, ...]]:
    """One scene has a kind or a colour that the other has not, or more shapes. Sometimes two such questions are asked."""
    size = random.choice(SCENE_SIZES) if level >= 0.25 else SCENE_SIZES[0]
    grounds = [scene_ground(random) for _ in ORDINALS]
    colours = [colours_on(ground) for ground, _ in grounds]
    counts = [1 + random.randint(0, round(4 * level)) for _ in ORDINALS]
    kinds: list[list[Kind]] = [
        [(random.choice(KINDS), random.choice(names)) for _ in range(count)]
        for names, count in zip(colours, counts, strict=True)
    ]
    questions = _differences(random, kinds)
    while not questions:  # the two scenes have the same kinds, colours and numbers
        kinds[0][0] = random.choice(KINDS), random.choice(colours[0])
        questions = _differences(random, kinds)
    turns = random.sample(questions, min(len(questions), random.choice((1, 1, 2))))
    first, second = (
        Scene(size, ground, place(random, shapes, size, level)) for ground, shapes in zip(grounds, kinds, strict=True)
    )
    return (first, second), tuple(turns)


def _differences(random: Random, kinds: list[list[Kind]]) -> list[Turn]:
    """One question of each sort that the two scenes allow."""
    found = []
    of_kind = [{kind for kind, _ in shapes} for shapes in kinds]
    of_colour = [{colour for _, colour in shapes} for shapes in kinds]
    for own, thing in ((of_kind, "a {}"), (of_colour, "something {}")):
        which = random.randrange(2)
        for here in (which, 1 - which):
            if only := sorted(own[here] - own[1 - here]):
                name = thing.format(random.choice(only))
                found.append(Turn(random.choice(phrasings.WHICH_HAS).format(thing=name), ORDINALS[here]))
                break
    if len(kinds[0]) != len(kinds[1]):
        more = ORDINALS[len(kinds[1]) > len(kinds[0])]
        found.append(Turn(random.choice(phrasings.WHICH_HAS_MORE), more))
    return found
