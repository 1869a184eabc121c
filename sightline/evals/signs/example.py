"""An example, and the rule for its answers.

Answers are matched exactly, after blanks around them are stripped. So each question has one right spelling:

what is written      as on the sign, case and punctuation kept; two lines are joined by one blank; two signs by ", "
a phone number       as on the sign, with its blanks, brackets and signs
a colour, a shape    one lower-case word of palette.COLOURS, of shapes.KINDS
a number             digits, no leading zero
a place              one of scenes.PLACES: "top left", "top", "top right", "left", "centre", …
a bar                its label as written
one of two images    "first" or "second"
a direction          "left", "right", "up" or "down"
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Split = Literal["train", "heldout"]
Pixels = NDArray[np.uint8]  # [height, width, 3] or [frames, height, width, 3]


@dataclass(frozen=True)
class Turn:
    question: str
    answer: str


@dataclass(frozen=True, eq=False)
class Example:
    """Pictures or one clip, and one or more questions about them, asked one after another."""

    skill: str  # a name in generate.SKILLS
    images: tuple[Pixels, ...]  # each [height, width, 3], sides multiples of 32; empty for a video
    frames: Pixels | None  # [frames, height, width, 3], an even number of frames; None without a video
    fps: float  # frames per second of the clip; a rate at which the sampling rules of all families keep each frame
    turns: tuple[Turn, ...]
    seed: int
