"""OCRBench: a thousand questions about text in images, from reading a word to key information of receipts.

An answer is right if one of the reference texts occurs in it, whatever the case and with newlines as blanks. For handwritten
formulas (dataset HME100k) case counts and blanks do not. The questions are prompts as they stand. Columns: dataset, question,
question_type, answer, image; in the benchmark's own JSON dataset_name, question, type, answers, image_path.
"""

import functools
from collections.abc import Sequence

from sightline.evals.benchmarks.published import Benchmark
from sightline.evals.benchmarks.rows import DatasetRow
from sightline.evals.conversation import user_message
from sightline.evals.task import Sample, Verdict, Words

_RECOGNITION = "Text Recognition"
_RECOGNITION_KINDS = (
    "Regular Text Recognition",
    "Irregular Text Recognition",
    "Artistic Text Recognition",
    "Handwriting Recognition",
    "Digit String Recognition",
    "Non-Semantic Text Recognition",
)
_OTHERS = (
    "Scene Text-centric VQA",
    "Doc-oriented VQA",
    "Key Information Extraction",
    "Handwritten Mathematical Expression Recognition",
)
_FORMULAS = "HME100k"


def groups_of(row: DatasetRow) -> tuple[str, ...]:
    kind = row.text("question_type", "type")
    return (_RECOGNITION, f"{_RECOGNITION}/{kind}") if kind in _RECOGNITION_KINDS else (kind,)


def sample_of(row: DatasetRow) -> Sample:
    question, answers = row.text("question").strip(), row.texts("answer", "answers")
    dataset = row.text("dataset", "dataset_name")
    return Sample(
        id=str(row.number),
        groups=groups_of(row),
        question=question,
        conversation=user_message(question, {"": row.image("image", "image_path")}),
        expected=answers,
        judge=functools.partial(judge, right=answers, formulas=dataset == _FORMULAS),
        extra={"dataset": dataset},
    )


def judge(answer: str, right: Sequence[str], formulas: bool) -> Verdict:
    normal = _without_blanks if formulas else _lower
    given = normal(answer)
    return Verdict(float(any(normal(one) in given for one in right)))


def _lower(text: str) -> str:
    return text.lower().strip().replace("\n", " ")


def _without_blanks(text: str) -> str:
    return text.strip().replace("\n", " ").replace(" ", "")


OCRBENCH = Benchmark(
    name="ocrbench",
    title="OCRBench",
    datasets=("echo840/OCRBench",),
    splits={"test": 1000},
    layout="data/test-00000-of-00001.parquet",
    groups_of=groups_of,
    sample_of=sample_of,
    group_order=(_RECOGNITION, *(f"{_RECOGNITION}/{kind}" for kind in _RECOGNITION_KINDS), *_OTHERS),
    words=Words("kind", points="points"),
    max_tokens=128,
    other_files={"test": ("OCRBench.json",)},
)
