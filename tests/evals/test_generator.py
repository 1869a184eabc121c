"""The generator: the same picture from the same seed everywhere, valid examples of every skill, and answers that are right."""

import hashlib
import re
import string
import subprocess
import sys
from random import Random

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image, ImageFilter

from sightline.errors import ConfigError
from sightline.evals.signs import SKILL_NAMES, SKILLS, Example, make_example, phrasings
from sightline.evals.signs.charts import BASE, TOP, draw_chart, make_chart
from sightline.evals.signs.clips import DIRECTIONS, make_motion
from sightline.evals.signs.fonts import FOLDER, FONTS, cap_height, load_font
from sightline.evals.signs.lettering import MIN_CAPS, draw_sign
from sightline.evals.signs.pairs import ORDINALS, make_scenes
from sightline.evals.signs.palette import COLOURS, contrast, luminance
from sightline.evals.signs.reading import SIGN_SIZES, text_that_fits
from sightline.evals.signs.scenes import MAX_COUNT, PLACES, Scene, draw_scene, make_scene, plural
from sightline.evals.signs.seen import IMAGE_SIZES
from sightline.evals.signs.shapes import KINDS, Shape, draw_shape
from sightline.evals.signs.words import MAX_CHARACTERS, sign_lines, written

SPLITS = ("train", "heldout")


def digest(example: Example) -> str:
    pixels = [example.frames] if example.frames is not None else example.images
    return hashlib.sha256(b"".join(array.tobytes() for array in pixels) + repr(example.turns).encode()).hexdigest()


def test_same_seed_same_example_in_another_process() -> None:
    """Red if anything depends on hash order, on what was drawn before, or on a global random state."""
    here = {skill: digest(make_example(7, "train", skill)) for skill in SKILL_NAMES}
    code = (
        "import sys; sys.path.insert(0, 'tests')\n"
        "from evals.test_generator import *\n"
        "for skill in reversed(SKILL_NAMES):\n"
        "    make_example(8, 'heldout', skill)\n"
        "    print(skill, digest(make_example(7, 'train', skill)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert dict(line.split() for line in done.stdout.splitlines()) == here


def test_seeds_splits_and_skills_differ() -> None:
    digests = [digest(make_example(seed, split, skill)) for seed in range(15) for split in SPLITS for skill in SKILL_NAMES]
    assert len(set(digests)) == len(digests)


def test_skills_are_drawn_by_weight() -> None:
    """Red if the weights are ignored: at 1,500 draws of level 0, four standard deviations are below 0.05."""
    assert sum(weight for _, weight in SKILLS) == pytest.approx(1)
    drawn = [make_example(seed, "train", level=0.0).skill for seed in range(1500)]
    for skill, weight in SKILLS:
        assert drawn.count(skill) / len(drawn) == pytest.approx(weight, abs=0.05)


def test_fonts_are_disjoint_and_all_there() -> None:
    assert not set(FONTS["train"]) & set(FONTS["heldout"])
    families = {split: {load_font(name, 20).getname()[0] for name in FONTS[split]} for split in SPLITS}
    assert not families["train"] & families["heldout"], "a held-out font is another weight of a training one"
    assert len(FONTS["train"]) >= 7 and len(FONTS["heldout"]) == 3
    assert {path.name for path in FOLDER.glob("*.?tf")} == {*FONTS["train"], *FONTS["heldout"]}
    readme = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert all(name in readme for split in SPLITS for name in FONTS[split])
    assert sum(path.stat().st_size for path in FOLDER.rglob("*") if path.is_file()) <= 6_000_000


@pytest.mark.parametrize("split", SPLITS)
def test_each_split_draws_with_its_own_fonts(split: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Watches which files are asked for while every skill that has text is drawn."""
    used: set[str] = set()

    def watch(name: str, em: int) -> object:
        used.add(name)
        return load_font(name, em)

    for module in ("lettering", "charts", "fonts"):
        monkeypatch.setattr(f"sightline.evals.signs.{module}.load_font", watch)
    for seed in range(60):
        for skill in ("sign", "phone", "chart", "two_images", "video"):
            make_example(seed, split, skill)
    assert used == set(FONTS[split])


# ---- Every skill

NUMBERS = {str(number) for number in range(11)}
TEXT = re.compile(r"[A-Za-z0-9!?&/\-.:#+% ]{1,12}")
PHONE = re.compile(r"[0-9()+\-. ]{7,16}")
LABEL = re.compile(r"[A-Z]|[A-Z][a-z]{2}|[a-z]{3}")


def is_allowed(skill: str, answer: str) -> bool:
    if skill == "sign":
        return bool(TEXT.fullmatch(answer)) and answer == answer.strip()
    if skill == "phone":
        return bool(PHONE.fullmatch(answer))
    if skill == "chart":
        return answer in NUMBERS or bool(LABEL.fullmatch(answer))
    if skill == "two_images":
        return answer in ORDINALS or all(TEXT.fullmatch(part) for part in answer.split(", "))
    if skill == "video":
        return answer in DIRECTIONS or answer in COLOURS or bool(TEXT.fullmatch(answer))
    fixed = {
        "colour": set(COLOURS),
        "shape": set(KINDS),
        "count": {str(n) for n in range(MAX_COUNT + 1)},
        "locate": set(PLACES),
    }
    return answer in fixed[skill]


@pytest.mark.parametrize("skill", SKILL_NAMES)
def test_examples_are_valid(skill: str) -> None:
    seen_turns, answers = set(), set()
    for seed in range(200):
        example = make_example(seed, SPLITS[seed % 2], skill, level=1.0 if seed < 150 else seed % 10 / 10)
        pictures = list(example.images) if example.frames is None else list(example.frames)
        assert (len(example.images) == {"two_images": 2, "video": 0}.get(skill, 1)) and example.seed == seed
        assert (example.frames is not None) == (skill == "video")
        if example.frames is not None:
            assert len(pictures) in (4, 6, 8) and pictures[0].shape == (64, 96, 3)
        for picture in pictures:
            assert picture.dtype == np.uint8 and picture.ndim == 3 and picture.flags.c_contiguous
            assert picture.shape == pictures[0].shape and not picture.shape[0] % 32 and not picture.shape[1] % 32
            assert example.frames is not None or picture.shape[:2] in IMAGE_SIZES
            assert example.frames is not None or picture.std() > 4, "nothing is drawn"
        assert 1 <= len(example.turns) <= 3
        for turn in example.turns:
            assert is_allowed(skill, turn.answer) or seed >= 150, turn
            assert "{" not in turn.question and turn.question[-1] in "?."
            answers.add(turn.answer)
        seen_turns.add(len(example.turns))
    assert seen_turns == {1} if skill in ("sign", "phone") else len(seen_turns) > 1
    wanted = {"colour": set(COLOURS), "shape": set(KINDS), "count": set("0123456"), "locate": set(PLACES)}
    wanted |= {"two_images": set(ORDINALS), "video": set(DIRECTIONS)}
    assert wanted.get(skill, set()) <= answers, "an answer never occurs"


def test_there_are_six_phrasings_of_everything() -> None:
    for name, options in vars(phrasings).items():
        if name.isupper():
            assert len(set(options)) >= 6, name


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ConfigError, match="'dance'"):
        make_example(0, "train", "dance")
    with pytest.raises(ConfigError, match=r"level is 1\.5"):
        make_example(0, "train", "sign", level=1.5)


# ---- Text


def test_level_0_is_one_glyph_on_a_plain_ground() -> None:
    for seed in range(200):
        example = make_example(seed, "train", "sign", level=0.0)
        picture, answer = example.images[0], example.turns[0].answer
        assert picture.shape == (64, 64, 3) and len(answer) == 1 and answer.isalnum()
        assert (picture[[0, 0, -1, -1], [0, -1, 0, -1]] == picture[0, 0]).all()


def test_long_signs_are_as_common_as_short_ones() -> None:
    lengths = [len(make_example(seed, "train", "sign").turns[0].answer) for seed in range(300)]
    assert set(lengths) == set(range(1, MAX_CHARACTERS + 1))
    assert max(len(" ".join(sign_lines(Random(seed), 4))) for seed in range(500)) == 4


def test_texts_can_be_told_apart() -> None:
    """No text is given as small letters if its capitals would look the same; codes have no letter that could be a digit."""
    assert [written(text) for text in ("sox", "sox7", "so!", "sax", "Sox", "c")] == ["SOX", "sox7", "SO!", "sax", "Sox", "C"]
    for seed in range(3000):
        text = " ".join(sign_lines(Random(seed), 2 if seed % 4 == 0 else 12))
        letters = [character for character in text if character.isalnum()]
        assert not letters or not set(letters) <= set("cosuvwxzp"), text
        for word in text.split():
            if any(character in string.digits for character in word):
                assert not set(word) & set("IlOo"), text
                assert "0" not in word or word.isdigit(), text


def linear(pixels: NDArray[np.uint8], mask: NDArray[np.bool_]) -> float:
    """Luminance of the mean colour under a mask."""
    red, green, blue = (int(value) for value in pixels[mask].mean(axis=0))
    return luminance((red, green, blue))


def test_text_stands_out_from_what_is_around_it() -> None:
    """Measured in pixels: ink against the ring around it. Also that all of the ink is inside the picture and large enough."""
    for seed in range(250):
        random = Random(seed)
        font = random.choice(FONTS["heldout" if seed % 2 else "train"])
        lines, size = text_that_fits(random, font, 12, SIGN_SIZES)
        sign = draw_sign(random, lines, font, size, 1.0)
        ink = np.asarray(sign.ink)
        near = np.asarray(sign.ink.filter(ImageFilter.MaxFilter(5)))
        full = np.asarray(sign.full)
        inner, outer = ink > 240, (ink < 8) & (near > 200)
        low, high = sorted((linear(full, inner), linear(full, outer)))
        assert (high + 0.05) / (low + 0.05) >= 2.8, (seed, lines)
        assert not ink[[0, -1]].max() and not ink[:, [0, -1]].max(), (seed, lines, "touches the rim")
        rows = np.flatnonzero((ink > 128).any(axis=1))
        text = "".join(lines)
        if any(character in string.ascii_uppercase + string.digits for character in text):
            assert rows[-1] - rows[0] + 1 >= MIN_CAPS - 3, (seed, lines)


def test_contrast_is_wcags() -> None:
    assert contrast((0, 0, 0), (255, 255, 255)) == pytest.approx(21)
    assert contrast((119, 119, 119), (255, 255, 255)) == pytest.approx(4.48, abs=0.01)  # the well-known grey just below 4.5
    assert 0.6 < cap_height("Arimo-Bold.ttf") < 0.8


# ---- Scenes, charts and clips: what the answer says, found again in pixels


def components(mask: NDArray[np.bool_]) -> list[NDArray[np.intp]]:
    """Pixels of each connected region, [pixels, 2], by flood fill."""
    left = {(int(y), int(x)) for y, x in np.argwhere(mask)}
    found = []
    while left:
        region, border = [], [left.pop()]
        while border:
            y, x = border.pop()
            region.append((y, x))
            for near in ((y + 1, x), (y - 1, x), (y, x + 1), (y, x - 1)):
                if near in left:
                    left.remove(near)
                    border.append(near)
        found.append(np.array(region))
    return found


def drawn_plainly(scene: Scene) -> NDArray[np.uint8]:
    return np.asarray(draw_scene(Random(0), scene, 0.0))


def regions_of(pixels: NDArray[np.uint8]) -> list[tuple[str, NDArray[np.intp]]]:
    """Colour name and pixels of each region, by exact colour; soft rims have other colours."""
    found = []
    for name, colour in COLOURS.items():
        found += [(name, region) for region in components((pixels == colour).all(axis=2)) if len(region) > 30]
    return found


@pytest.mark.parametrize("skill", ["colour", "shape", "count", "locate"])
def test_scenes_are_as_the_answers_say(skill: str) -> None:
    for seed in range(60):
        scene, turns = make_scene(Random(seed), skill, 1.0)
        pixels = drawn_plainly(scene)
        regions = regions_of(pixels)
        assert sorted(name for name, _ in regions) == sorted(shape.colour for shape in scene.shapes), seed
        for turn in turns:
            named = [kind for kind in KINDS if re.search(rf"\b({kind}|{plural(kind)})\b", turn.question)]
            coloured = [name for name in COLOURS if re.search(rf"\b{name}\b", turn.question)]
            meant = [s for s in scene.shapes if (not named or s.kind in named) and (not coloured or s.colour in coloured)]
            if skill == "count":
                assert len(meant) == int(turn.answer)
                assert named or len([name for name, _ in regions if name in (coloured or COLOURS)]) == int(turn.answer)
                continue
            assert len(meant) == 1, turn
            (shape,) = meant
            if skill == "shape":
                assert turn.answer == shape.kind
            centre = shape.y, shape.x  # a heart's weight lies a little above it
            near = [(name, region) for name, region in regions if np.hypot(*(region.mean(0) - centre)) < 0.2 * shape.radius + 1]
            assert [name for name, _ in near] == [shape.colour]
            if skill == "colour":
                assert turn.answer == near[0][0]
            if skill == "locate":
                y, x = near[0][1].mean(axis=0)
                assert turn.answer == PLACES[3 * int(3 * y / scene.size[0]) + int(3 * x / scene.size[1])]


def test_kinds_look_different() -> None:
    """Share of the circumscribed square that is filled, and what is in the middle, tell the kinds apart."""
    middle, filled = {}, {}
    for kind in KINDS:
        picture = Image.new("RGB", (64, 64))
        draw_shape(picture, Shape(kind, "white", 32, 32, 28), (255, 255, 255))
        white = np.asarray(picture)[:, :, 0] > 128
        middle[kind], filled[kind] = bool(white[32, 32]), white.sum() / 64**2
        assert np.abs(np.argwhere(white) - 31.5).max() <= 29
    assert [kind for kind in KINDS if not middle[kind]] == ["ring"]
    rounded = {kind: round(share, 2) for kind, share in filled.items()}
    assert len(set(rounded.values())) == len(KINDS), rounded


def test_level_0_scenes_have_one_big_shape() -> None:
    for seed in range(40):
        for skill in ("colour", "shape", "count"):
            scene, _ = make_scene(Random(seed), skill, 0.0)
            assert len(scene.shapes) == 1 and scene.shapes[0].radius > 40


def test_bars_are_as_high_as_the_answers_say() -> None:
    """Heights are measured in the drawing and compared with the gridlines, not with the chart's own arithmetic."""
    asked = set()
    for seed in range(80):
        chart, turns = make_chart(Random(seed), "train", 1.0)
        pixels = np.asarray(draw_chart(chart))
        per_unit = (BASE - TOP) / chart.top
        measured = {}
        for number, label in enumerate(chart.labels):
            left, _, right, _ = chart.bar(number)
            column = (pixels[:, (left + right) // 2] == chart.paint[number]).all(axis=1)
            measured[label] = round(int(column[: BASE + 1].sum()) / per_unit)
        for turn in turns:
            sorts = {"max": phrasings.HIGHEST, "min": phrasings.LOWEST, "bars": phrasings.BARS}
            what = next((sort for sort, options in sorts.items() if turn.question in options), "value")
            asked.add(what)
            if what == "bars":
                assert turn.answer == str(len(measured))
            elif what == "value":
                (label,) = [label for label in measured if re.search(rf"\b{label}\b", turn.question)]
                assert turn.answer == str(measured[label])
            else:
                best = max(measured.values()) if what == "max" else min(measured.values())
                assert [label for label, value in measured.items() if value == best] == [turn.answer]
    assert asked == {"max", "min", "bars", "value"}


def test_pairs_differ_as_the_answers_say() -> None:
    sorts = set()
    for seed in range(150):
        scenes, turns = make_scenes(Random(seed), 1.0)
        regions = [regions_of(drawn_plainly(scene)) for scene in scenes]
        for turn in turns:
            which = ORDINALS.index(turn.answer)
            if turn.question in phrasings.WHICH_HAS_MORE:
                sorts.add("more")
                assert len(regions[which]) > len(regions[1 - which])
            elif colours := [name for name in COLOURS if f"something {name}" in turn.question]:
                sorts.add("colour")
                assert [any(name == colours[0] for name, _ in found) for found in regions] == [which == 0, which == 1]
            else:
                sorts.add("kind")
                (kind,) = [kind for kind in KINDS if f"a {kind}" in turn.question]
                assert [any(s.kind == kind for s in scene.shapes) for scene in scenes] == [which == 0, which == 1]
    assert sorts == {"more", "colour", "kind"}


def test_things_move_as_the_answers_say() -> None:
    """The centre of what changes between the first and the last frame, found in the pixels of the finished clip."""
    seen = set()
    for seed in range(80):
        example = make_example(seed, "train", "video", level=0.2)  # nothing but the shape differs between frames
        assert example.frames is not None
        if example.turns[0].answer not in DIRECTIONS:
            first, *_, last = example.frames.astype(int)
            assert (example.frames[-1] == example.frames[-2]).mean() > 0.9 and np.abs(first - last).max() > 60
            continue
        paths = []
        ground = np.median(example.frames, axis=(0, 1, 2))
        for frame in example.frames:
            paths.append(np.argwhere(np.abs(frame - ground).sum(axis=2) > 90).mean(axis=0))
        down, right = paths[-1] - paths[0]
        straight = {"left": -right, "right": right, "up": -down, "down": down}
        assert straight[example.turns[0].answer] == max(straight.values()) > 15
        seen.add(example.turns[0].answer)
    assert seen == set(DIRECTIONS)


def test_motion_stays_in_the_picture() -> None:
    for seed in range(200):
        path, still, _ = make_motion(Random(seed), 1.0, 8)
        for shape in path + still:
            assert shape.radius <= shape.x <= 96 - shape.radius and shape.radius <= shape.y <= 64 - shape.radius
        for other in still:
            assert min(np.hypot(s.x - other.x, s.y - other.y) - s.radius - other.radius for s in path) > 2
