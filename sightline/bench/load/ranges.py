"""A number, or a range that one is drawn from for each request or picture: 3, or 0-3."""

import re
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class IntRange:
    """Both ends belong to it."""

    low: int
    high: int

    @property
    def is_one(self) -> bool:
        return self.low == self.high

    def draw(self, random: np.random.Generator) -> int:
        return int(random.integers(self.low, self.high + 1))

    def __str__(self) -> str:
        return str(self.low) if self.is_one else f"{self.low}-{self.high}"

    @property
    def shown(self) -> int | str:
        """For JSON: a number stays one."""
        return self.low if self.is_one else str(self)


def int_range(text: str) -> IntRange:
    """As a command line has it; a ValueError says what is wrong."""
    found = re.fullmatch(r"(-?\d{1,9})(?:-(\d{1,9}))?", text.strip())
    if found is None:
        raise ValueError(f"{text!r} is neither a number nor a range such as 0-3")
    low, high = int(found[1]), int(found[2] or found[1])
    if low > high:
        raise ValueError(f"the range {text!r} ends before it begins")
    return IntRange(low, high)


def as_range(value: int | IntRange) -> IntRange:
    return value if isinstance(value, IntRange) else IntRange(value, value)
