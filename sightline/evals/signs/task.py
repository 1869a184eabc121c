"""Signs as a task: held-out examples of each skill, one sample per question, right if the answer is the expected text."""

import functools
from collections.abc import Iterator, Sequence

from sightline.errors import ConfigError
from sightline.evals.run import Judged
from sightline.evals.signs.conversation import conversations
from sightline.evals.signs.evaluate import LONGEST, Asked, Evaluation
from sightline.evals.signs.generate import SKILL_NAMES, make_example
from sightline.evals.task import Sample, Task, Verdict, Words


def signs_task(samples: int, skills: Sequence[str] = SKILL_NAMES, seed: int = 0) -> Task:
    """`samples` examples of each skill, seeds from `seed` up."""
    if samples < 1:
        raise ConfigError(f"samples is {samples}, but must be at least 1.")
    for skill in skills:
        if skill not in SKILL_NAMES:
            raise ConfigError(f"There is no skill {skill!r}; the skills are {', '.join(SKILL_NAMES)}.")
    chosen = tuple(dict.fromkeys(skills))
    return Task(
        settings={"task": "signs", "split": "heldout"},
        count=None,
        samples=functools.partial(_samples, samples, chosen, seed),
        group_order=SKILL_NAMES,
        max_tokens=LONGEST,
        words=Words("skill"),
        sampling={"repetition_penalty": 1.0},
    )


def _samples(samples: int, skills: Sequence[str], seed: int) -> Iterator[Sample]:
    for skill in skills:
        for number in range(seed, seed + samples):
            example = make_example(number, "heldout", skill)
            for turn, conversation in enumerate(conversations(example)):
                question, answer = example.turns[turn].question, example.turns[turn].answer
                yield Sample(
                    id=f"{skill}-{number}-{turn}",
                    groups=(skill,),
                    question=question,
                    conversation=conversation,
                    expected=answer,
                    judge=functools.partial(_judge, right=answer),
                    extra={"skill": skill, "seed": number, "turn": turn},
                )


def _judge(answer: str, right: str) -> Verdict:
    return Verdict(float(answer.strip() == right))


def as_evaluation(judged: Sequence[Judged], samples: int, seed: int) -> Evaluation:
    """The same as evaluate() gives."""
    fields = ("skill", "seed", "turn", "question", "expected", "got")
    return Evaluation(seed, samples, tuple(Asked(**{name: one.record[name] for name in fields}) for one in judged))
