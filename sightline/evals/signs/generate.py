"""One example from a seed: the same one in every process, with the same versions of Pillow and numpy."""

import hashlib
from random import Random

from sightline.errors import ConfigError
from sightline.evals.signs.charts import make_chart, picture_of_chart
from sightline.evals.signs.clips import make_clip
from sightline.evals.signs.example import Example, Split
from sightline.evals.signs.pairs import make_pair
from sightline.evals.signs.reading import make_phone, make_sign
from sightline.evals.signs.scenes import make_scene, picture_of

# How often each skill is drawn when none is named. Reading takes most of the learning.
SKILLS: tuple[tuple[str, float], ...] = (
    ("sign", 0.36),
    ("phone", 0.12),
    ("colour", 0.08),
    ("shape", 0.08),
    ("count", 0.10),
    ("locate", 0.06),
    ("chart", 0.06),
    ("two_images", 0.07),
    ("video", 0.07),
)
SKILL_NAMES = tuple(name for name, _ in SKILLS)
FPS = 2.0  # see Example.fps


def make_example(seed: int, split: Split, skill: str | None = None, level: float = 1.0) -> Example:
    """`level` runs from 0, one large clean glyph or shape, to 1. The skill is drawn by SKILLS' weights if none is named."""
    if skill is None:
        skill = _random_of(split, seed, "skill").choices(SKILL_NAMES, [weight for _, weight in SKILLS])[0]
    if skill not in SKILL_NAMES:
        raise ConfigError(f"There is no skill {skill!r}; the skills are {', '.join(SKILL_NAMES)}.")
    if not 0 <= level <= 1:
        raise ConfigError(f"level is {level}, but must be between 0 and 1.")
    random = _random_of(split, seed, skill)
    if skill in ("sign", "phone"):
        pixels, turn = (make_sign if skill == "sign" else make_phone)(random, split, level)
        return Example(skill, (pixels,), None, FPS, (turn,), seed)
    if skill == "chart":
        chart, turns = make_chart(random, split, level)
        return Example(skill, (picture_of_chart(random, chart, level),), None, FPS, turns, seed)
    if skill == "two_images":
        images, turns = make_pair(random, split, level)
        return Example(skill, images, None, FPS, turns, seed)
    if skill == "video":
        frames, turns = make_clip(random, split, level)
        return Example(skill, (), frames, FPS, turns, seed)
    scene, turns = make_scene(random, skill, level)
    return Example(skill, (picture_of(random, scene, level),), None, FPS, turns, seed)


def _random_of(split: Split, seed: int, purpose: str) -> Random:
    """Hashed, so that neighbouring seeds, other skills and the other split have nothing in common."""
    return Random(int.from_bytes(hashlib.sha256(f"{split} {seed} {purpose}".encode()).digest()))
