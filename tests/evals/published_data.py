"""Tiny datasets in the layouts that benchmarks are published in, with real PNG files as images."""

import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image, ImageDraw

IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def png(number: int, size: tuple[int, int] = (64, 64)) -> bytes:
    """A picture of its own for each number."""
    picture = Image.new("RGB", size, (40 * number % 256, 90, 200))
    ImageDraw.Draw(picture).text((4, 4), str(number), fill="white")
    encoded = io.BytesIO()
    picture.save(encoded, "PNG")
    return encoded.getvalue()


def image(number: int) -> dict[str, Any]:
    return {"bytes": png(number), "path": f"{number}.png"}


def write_parquet(file: Path, rows: Sequence[Mapping[str, Any]], columns: Mapping[str, pa.DataType]) -> Path:
    """Two rows per row group, so that groups can be left out."""
    file.parent.mkdir(parents=True, exist_ok=True)
    full = [{name: row.get(name) for name in columns} for row in rows]
    pq.write_table(pa.Table.from_pylist(full, pa.schema(list(columns.items()))), file, row_group_size=2)
    return file


def write_json(file: Path, content: Any) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    if file.suffix == ".jsonl":
        file.write_text("".join(json.dumps(row) + "\n" for row in content), encoding="utf-8")
    else:
        file.write_text(json.dumps(content), encoding="utf-8")
    return file


MMMU_COLUMNS = {
    **dict.fromkeys(("id", "question", "options", "explanation"), pa.string()),
    **{f"image_{n}": IMAGE for n in range(1, 8)},
    **dict.fromkeys(("img_type", "answer", "topic_difficulty", "question_type", "subfield"), pa.string()),
}


def mmmu_row(subject: str, number: int, question: str, options: Sequence[str], answer: str, images: int = 1) -> dict[str, Any]:
    return {
        "id": f"validation_{subject}_{number}",
        "question": question,
        "options": repr(list(options)),
        "answer": answer,
        "question_type": "multiple-choice" if options else "open",
        **{f"image_{n}": image(10 * number + n) for n in range(1, images + 1)},
    }


def write_mmmu(folder: Path) -> Path:
    """Four questions of two subjects, one of them open, one with three images."""
    art = [
        mmmu_row("Art_Theory", 1, "<image 1> Who drew it?", ["Dürer", "Klee", "Cranach"], "B"),
        mmmu_row("Art_Theory", 2, "Which is older, <image 1> or <image 2>?", ["the first", "<image 3>"], "A", images=3),
    ]
    maths = [
        mmmu_row("Math", 1, "What is seven times six? <image 1>", ["42", "43"], "A"),
        mmmu_row("Math", 2, "How many sides has <image 1>?", [], "['24/7', '3.429']"),
    ]
    for subject, rows in (("Art_Theory", art), ("Math", maths)):
        write_parquet(folder / subject / "validation-00000-of-00001.parquet", rows, MMMU_COLUMNS)
    return folder


OCRBENCH_COLUMNS = {
    "dataset": pa.string(),
    "question": pa.string(),
    "question_type": pa.string(),
    "answer": pa.list_(pa.string()),
    "image": IMAGE,
}
DOCVQA_COLUMNS = {
    "questionId": pa.string(),
    "question": pa.string(),
    "question_types": pa.list_(pa.string()),
    "image": IMAGE,
    "docId": pa.int64(),
    "ucsf_document_id": pa.string(),
    "ucsf_document_page_no": pa.string(),
    "answers": pa.list_(pa.string()),
    "data_split": pa.string(),
}
CHARTQA_COLUMNS = {"type": pa.string(), "question": pa.string(), "answer": pa.string(), "image": IMAGE}
CHARTQA_M4_COLUMNS = {
    "image": IMAGE,
    "query": pa.string(),
    "label": pa.list_(pa.string()),
    "human_or_machine": pa.int64(),
}


def write_ocrbench(folder: Path, answers: Sequence[Sequence[str]]) -> Path:
    kinds = ("Regular Text Recognition", "Digit String Recognition", "Doc-oriented VQA")
    rows = [
        {
            "dataset": "IIIT5K",
            "question": f"what is written in the image? ({number})",
            "question_type": kinds[number % 3],
            "answer": list(answer),
            "image": image(number),
        }
        for number, answer in enumerate(answers)
    ]
    write_parquet(folder / "data" / "test-00000-of-00001.parquet", rows, OCRBENCH_COLUMNS)
    return folder


def write_docvqa(folder: Path, answers: Sequence[Sequence[str]]) -> Path:
    """Two files, and the other benchmark of the same dataset beside them."""
    rows = [
        {
            "questionId": str(500 + number),
            "question": f"What is the date of page {number}?",
            "question_types": [["form"], ["form", "layout"]][number % 2],
            "image": image(number),
            "answers": list(answer),
        }
        for number, answer in enumerate(answers)
    ]
    half = len(rows) // 2
    write_parquet(folder / "DocVQA" / "validation-00000-of-00002.parquet", rows[:half], DOCVQA_COLUMNS)
    write_parquet(folder / "DocVQA" / "validation-00001-of-00002.parquet", rows[half:], DOCVQA_COLUMNS)
    other = [{**rows[0], "questionId": "1"}]
    write_parquet(folder / "InfographicVQA" / "validation-00000-of-00001.parquet", other, DOCVQA_COLUMNS)
    return folder


def chartqa_rows(answers: Sequence[str]) -> list[dict[str, Any]]:
    return [
        {
            "type": ["human_test", "augmented_test"][number % 2],
            "question": f"What is the value of bar {number}?",
            "answer": answer,
            "image": image(number),
        }
        for number, answer in enumerate(answers)
    ]


def write_chartqa(folder: Path, answers: Sequence[str]) -> Path:
    write_parquet(folder / "data" / "test-00000-of-00001.parquet", chartqa_rows(answers), CHARTQA_COLUMNS)
    return folder
