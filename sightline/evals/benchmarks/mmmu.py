"""MMMU: college questions of thirty subjects, with up to seven images in question and options.

The prompts are those of the benchmark's own repository; each image stands where the text first names it. Columns: id, question,
options (a Python list as text), image_1 to image_7, answer, question_type.
"""

import ast
import functools
import re
from random import Random
from typing import Any

from sightline.errors import ConfigError
from sightline.evals.benchmarks.mmmu_answers import judge_choice, judge_open
from sightline.evals.benchmarks.published import Benchmark
from sightline.evals.benchmarks.rows import DatasetRow
from sightline.evals.conversation import user_message
from sightline.evals.task import Sample, Words

DOMAINS: dict[str, tuple[str, ...]] = {
    "Art and Design": ("Art", "Art_Theory", "Design", "Music"),
    "Business": ("Accounting", "Economics", "Finance", "Manage", "Marketing"),
    "Science": ("Biology", "Chemistry", "Geography", "Math", "Physics"),
    "Health and Medicine": (
        "Basic_Medical_Science",
        "Clinical_Medicine",
        "Diagnostics_and_Laboratory_Medicine",
        "Pharmacy",
        "Public_Health",
    ),
    "Humanities and Social Science": ("History", "Literature", "Sociology", "Psychology"),
    "Tech and Engineering": (
        "Agriculture",
        "Architecture_and_Engineering",
        "Computer_Science",
        "Electronics",
        "Energy_and_Power",
        "Materials",
        "Mechanical_Engineering",
    ),
}
_DOMAIN_OF = {subject: domain for domain, subjects in DOMAINS.items() for subject in subjects}
_IMAGE_MARK = re.compile(r"<image (\d)>")
_MOST_IMAGES = 7
_SEED = 42  # of the benchmark's own code, for guesses


def groups_of(row: DatasetRow) -> tuple[str, ...]:
    """(domain, domain/subject), from an id such as validation_Art_Theory_12."""
    name = row.text("id")
    subject = "_".join(name.split("_")[1:-1])
    if subject not in _DOMAIN_OF:
        raise ConfigError(f"Row {row.number} of {row.file} has the id {name!r}, which names no subject of MMMU.")
    domain = _DOMAIN_OF[subject]
    return domain, f"{domain}/{subject}"


def sample_of(row: DatasetRow) -> Sample:
    name, question = row.text("id"), row.text("question")
    images = {str(n): row.image(f"image_{n}") for n in range(1, _MOST_IMAGES + 1) if _is_there(row.fields.get(f"image_{n}"))}
    if row.text("question_type") == "multiple-choice":
        options = {chr(ord("A") + n): option for n, option in enumerate(_listed(row.first("options")))}
        shown = "".join(f"({letter}) {option}\n" for letter, option in options.items())
        prompt = f"{question}\n{shown}\nAnswer with the option's letter from the given choices directly."
        letter = row.text("answer")
        judge = functools.partial(judge_choice, options=options, right=letter, chance=lambda: Random(f"{_SEED} {name}"))
        expected: str | list[str] = letter
    else:
        prompt = f"{question}\nAnswer the question using a single word or phrase."
        expected = _listed(row.first("answer"))
        judge = functools.partial(judge_open, right=expected)
    return Sample(
        id=name,
        groups=groups_of(row),
        question=prompt,
        conversation=user_message(prompt, images, _IMAGE_MARK),
        expected=expected,
        judge=judge,
    )


def _is_there(image: Any) -> bool:
    return bool(image) and (not isinstance(image, dict) or bool(image.get("bytes") or image.get("path")))


def _listed(value: Any) -> list[str]:
    """A list, or one written as Python text, or a single text."""
    if isinstance(value, str) and value.lstrip().startswith("["):
        try:
            value = ast.literal_eval(value.strip())
        except (ValueError, SyntaxError):
            raise ConfigError(f"MMMU has a list that cannot be read: {value!r}.") from None
    return [str(one) for one in value] if isinstance(value, list | tuple) else [str(value)]


MMMU = Benchmark(
    name="mmmu",
    title="MMMU",
    datasets=("MMMU/MMMU", "lmms-lab/MMMU", "lmms-lab-encoder/MMMU"),
    splits={"validation": 900, "dev": 150},
    layout="Accounting/validation-00000-of-00001.parquet, one folder per subject",
    groups_of=groups_of,
    sample_of=sample_of,
    group_order=tuple(
        group for domain, subjects in DOMAINS.items() for group in (domain, *(f"{domain}/{subject}" for subject in subjects))
    ),
    words=Words("subject"),
    max_tokens=128,
    other_files={},
)
