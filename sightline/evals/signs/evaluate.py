"""Held-out examples asked through the library, and how many answers match exactly.

The counted thing is a turn: one question with one answer. Turns of one example share their pictures, so the standard error,
sqrt(p (1 - p) / n), is a little too small where examples have several.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any, Protocol

from sightline.errors import ConfigError
from sightline.evals.signs.conversation import Conversation, conversations
from sightline.evals.signs.generate import SKILL_NAMES, make_example
from sightline.types import Completion, SamplingParams

LONGEST = 48  # tokens of an answer; the longest right one is two signs of 8 characters
_SHOWN = 3  # failures per skill in the report


class ChatModel(Protocol):
    """What is asked of a model: LLM.chat on a list of conversations."""

    def chat(self, messages: Sequence[Conversation], sampling: SamplingParams) -> list[Completion]: ...


@dataclass(frozen=True)
class Asked:
    """One turn and what came back."""

    skill: str
    seed: int
    turn: int
    question: str
    expected: str
    got: str

    @property
    def correct(self) -> bool:
        return self.got.strip() == self.expected


@dataclass(frozen=True)
class SkillScore:
    skill: str
    n: int  # turns
    correct: int

    @property
    def accuracy(self) -> float:
        return self.correct / self.n

    @property
    def standard_error(self) -> float:
        return math.sqrt(self.accuracy * (1 - self.accuracy) / self.n)


@dataclass(frozen=True)
class Evaluation:
    seed: int
    samples: int  # examples per skill
    asked: tuple[Asked, ...]  # skill by skill, in the order asked

    @property
    def scores(self) -> tuple[SkillScore, ...]:
        skills = dict.fromkeys(one.skill for one in self.asked)
        return tuple(_score(skill, [one for one in self.asked if one.skill == skill]) for skill in skills)

    @property
    def failures(self) -> tuple[Asked, ...]:
        return tuple(one for one in self.asked if not one.correct)


def evaluate(
    llm: ChatModel,
    samples: int,
    skills: Sequence[str] = SKILL_NAMES,
    seed: int = 0,
    batch: int = 64,
) -> Evaluation:
    """Greedy answers to `samples` held-out examples of each skill, seeds from `seed` up, at most `batch` questions at once."""
    for name, number in (("samples", samples), ("batch", batch)):
        if number < 1:
            raise ConfigError(f"{name} is {number}, but must be at least 1.")
    for skill in skills:
        if skill not in SKILL_NAMES:
            raise ConfigError(f"There is no skill {skill!r}; the skills are {', '.join(SKILL_NAMES)}.")
    asked: list[Asked] = []
    sampling = SamplingParams(max_tokens=LONGEST, temperature=0.0, repetition_penalty=1.0)
    for skill in dict.fromkeys(skills):
        questions = _questions(skill, range(seed, seed + samples))
        while group := list(islice(questions, batch)):
            answers = llm.chat([conversation for _, conversation in group], sampling)
            for (turn, _), answer in zip(group, answers, strict=True):
                if answer.error is not None:
                    raise answer.error
                asked.append(Asked(**turn, got=answer.text))
    return Evaluation(seed, samples, tuple(asked))


def _questions(skill: str, seeds: range) -> Iterator[tuple[dict[str, Any], Conversation]]:
    """The fields of Asked that are known before the answer, and what to ask."""
    for seed in seeds:
        example = make_example(seed, "heldout", skill)
        for number, conversation in enumerate(conversations(example)):
            turn = example.turns[number]
            known = {"skill": skill, "seed": seed, "turn": number, "question": turn.question, "expected": turn.answer}
            yield known, conversation


def _score(skill: str, asked: Sequence[Asked]) -> SkillScore:
    return SkillScore(skill, len(asked), sum(one.correct for one in asked))


# ---- The report


def failure_lines(evaluation: Evaluation) -> list[str]:
    """A few failures of each skill: what was right and what came."""
    lines = []
    for score in evaluation.scores:
        failed = [one for one in evaluation.failures if one.skill == score.skill]
        for one in failed[:_SHOWN]:
            lines.append(
                f"{one.skill:12s}seed {one.seed}: {one.question} {one.expected!r}, got {_shortened(one.got.strip())!r}"
            )
        if len(failed) > _SHOWN:
            lines.append(f"{score.skill:12s}and {len(failed) - _SHOWN} more")
    return lines


def _shortened(text: str, most: int = 40) -> str:
    return text if len(text) <= most else f"{text[:most]}…"


def as_json(evaluation: Evaluation) -> dict[str, object]:
    return {
        "task": "signs",
        "split": "heldout",
        "seed": evaluation.seed,
        "samples": evaluation.samples,
        "skills": [
            {**asdict(score), "accuracy": score.accuracy, "standard_error": score.standard_error} for score in evaluation.scores
        ],
        "failures": [asdict(one) for one in evaluation.failures],
    }
