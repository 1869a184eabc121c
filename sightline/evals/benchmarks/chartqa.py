"""ChartQA: questions about charts, scored by relaxed accuracy.

A number is right within 5 % of the reference; anything else must be the same text, whatever the case. "12%" is 0.12. Thousands
may be separated by commas, which the usual code does not allow for. Columns: type, question, answer, image; or query, label,
human_or_machine, image; in the benchmark's own JSON files query, label, imgname.
"""

import functools
import re

from sightline.evals.benchmarks.published import Benchmark
from sightline.evals.benchmarks.rows import DatasetRow
from sightline.evals.conversation import user_message
from sightline.evals.task import Sample, Verdict, Words

TOLERANCE = 0.05
_HUMAN, _AUGMENTED = "human", "augmented"
_THOUSANDS = re.compile(r"[+-]?\d{1,3}(,\d{3})+(\.\d*)?")


def groups_of(row: DatasetRow) -> tuple[str, ...]:
    """Who wrote the question."""
    if "type" not in row.fields and "human_or_machine" not in row.fields:
        return (_HUMAN if "human" in row.file.stem else _AUGMENTED,)  # the benchmark's own files, test_human and test_augmented
    author = row.first("type", "human_or_machine")
    return (_HUMAN if author == 0 or str(author).startswith("human") else _AUGMENTED,)


def sample_of(row: DatasetRow) -> Sample:
    prompt = f"{row.text('question', 'query')}\nAnswer the question with a single word."
    answer = row.texts("answer", "label")[0]
    return Sample(
        id=str(row.number),
        groups=groups_of(row),
        question=prompt,
        conversation=user_message(prompt, {"": row.image("image", "imgname")}),
        expected=answer,
        judge=functools.partial(judge, right=answer),
    )


def judge(answer: str, right: str) -> Verdict:
    given, wanted = as_number(answer), as_number(right)
    if given is not None and wanted:  # not 0: there is no share of it
        return Verdict(float(abs(given - wanted) / abs(wanted) <= TOLERANCE))
    return Verdict(float(answer.strip().lower() == right.strip().lower()))


def as_number(text: str) -> float | None:
    text = text.strip()
    percent = text.endswith("%")
    text = text.rstrip("%")
    if _THOUSANDS.fullmatch(text):
        text = text.replace(",", "")
    try:
        return float(text) / (100 if percent else 1)
    except ValueError:
        return None


CHARTQA = Benchmark(
    name="chartqa",
    title="ChartQA",
    datasets=("lmms-lab/ChartQA", "lmms-lab-encoder/ChartQA", "HuggingFaceM4/ChartQA"),
    splits={"test": 2500},
    layout="data/test-00000-of-00001.parquet",
    groups_of=groups_of,
    sample_of=sample_of,
    group_order=(_HUMAN, _AUGMENTED),
    words=Words("questions", score="relaxed accuracy"),
    max_tokens=16,
    other_files={"test": ("test_*.json",)},
)
