"""What an evaluation asks, and how it judges the answers."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from sightline.evals.conversation import Conversation


@dataclass(frozen=True)
class Verdict:
    score: float  # from 0 to 1
    read_as: str = ""  # what the rules took the answer for, where that is not the answer itself
    note: str = ""  # something worth counting, such as a guess


@dataclass(frozen=True, eq=False)
class Sample:
    """One question. `id` is its own within the task, whichever other samples are asked."""

    id: str
    groups: tuple[str, ...]  # all that count it; "Science/Math" lies within "Science"
    question: str
    conversation: Conversation  # ends with the user's turn
    expected: str | list[str]
    judge: Callable[[str], Verdict]
    extra: Mapping[str, Any] = field(default_factory=dict)  # more to keep in its record


@dataclass(frozen=True)
class Words:
    """How the table calls a group, the sum of scores, and their mean."""

    group: str = "group"
    points: str = "correct"
    score: str = "accuracy"


@dataclass(frozen=True, eq=False)
class Task:
    settings: Mapping[str, Any]  # what decides which answers are comparable: "task", "split" and so on
    count: int | None  # how many samples there are, if that is known before they are drawn
    samples: Callable[[], Iterator[Sample]]  # reads or draws them one by one
    group_order: tuple[str, ...]  # of the table; other groups follow
    max_tokens: int
    words: Words = Words()
    sampling: Mapping[str, Any] = field(default_factory=dict)  # besides temperature 0 and max_tokens
    notes: tuple[str, ...] = ()  # sentences that a reader of the scores should know

    @property
    def name(self) -> str:
        return str(self.settings["task"])
