"""DocVQA: questions about scanned pages, scored by ANLS, the average normalised Levenshtein similarity.

A question scores 1 less the edit distance to the nearest reference as a share of the longer text, and 0 below one half. Case
and runs of white space do not count. Columns: questionId, question, question_types, image, answers.
"""

import functools
from collections.abc import Sequence

from sightline.evals.benchmarks.published import Benchmark
from sightline.evals.benchmarks.rows import DatasetRow
from sightline.evals.conversation import user_message
from sightline.evals.task import Sample, Verdict, Words

THRESHOLD = 0.5
_NO_TYPE = "no type"


def groups_of(row: DatasetRow) -> tuple[str, ...]:
    """Its types; some questions have several."""
    types = row.fields.get("question_types")
    return tuple(dict.fromkeys(row.texts("question_types"))) if types else (_NO_TYPE,)


def sample_of(row: DatasetRow) -> Sample:
    prompt = f"{row.text('question')}\nAnswer the question using a single word or phrase."
    answers = row.texts("answers")
    return Sample(
        id=str(row.first("questionId")),
        groups=groups_of(row),
        question=prompt,
        conversation=user_message(prompt, {"": row.image("image")}),
        expected=answers,
        judge=functools.partial(judge, right=answers),
    )


def judge(answer: str, right: Sequence[str]) -> Verdict:
    best = max(similarity(answer, one) for one in right)
    return Verdict(best if best >= THRESHOLD else 0.0)


def similarity(answer: str, right: str) -> float:
    """Two empty texts are alike. The longer text is taken as written, before white space is joined, as the original does."""
    longer = max(len(answer.upper()), len(right.upper()))
    return 1 - edit_distance(_normal(answer), _normal(right)) / longer if longer else 1.0


def _normal(text: str) -> str:
    return " ".join(text.lower().split())


def edit_distance(one: str, other: str) -> int:
    """Fewest characters to insert, delete or change: row by row of the usual table."""
    above = list(range(len(other) + 1))
    for row, character in enumerate(one, 1):
        current = [row]
        for column, wanted in enumerate(other, 1):
            current.append(min(above[column] + 1, current[-1] + 1, above[column - 1] + (character != wanted)))
        above = current
    return above[-1]


DOCVQA = Benchmark(
    name="docvqa",
    title="DocVQA",
    datasets=("lmms-lab/DocVQA", "lmms-lab-encoder/DocVQA"),
    splits={"validation": 5349},
    layout="DocVQA/validation-00000-of-00006.parquet",
    groups_of=groups_of,
    sample_of=sample_of,
    group_order=(),
    words=Words("question type", points="points", score="ANLS"),
    max_tokens=32,
    other_files={"validation": ("val_v1.0_withQT.json", "val_v1.0.json")},
    without=("InfographicVQA",),
)
