"""Published files become samples: prompts as the benchmarks write them, images in place, groups; and what is wrong is said."""

import re
import sys
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from evals.published_data import (
    CHARTQA_M4_COLUMNS,
    IMAGE,
    MMMU_COLUMNS,
    chartqa_rows,
    image,
    mmmu_row,
    png,
    write_chartqa,
    write_docvqa,
    write_json,
    write_mmmu,
    write_ocrbench,
    write_parquet,
)
from sightline.errors import ConfigError
from sightline.evals.benchmarks.all import BENCHMARKS
from sightline.evals.benchmarks.published import load_benchmark
from sightline.evals.task import Sample


def samples_of(name: str, data: Path, **options: Any) -> list[Sample]:
    task = load_benchmark(BENCHMARKS[name], data, **options)
    found = list(task.samples())
    assert len(found) == task.count
    return found


def content(sample: Sample) -> list[Any]:
    """Texts, and the bytes of images, in the order in which the model meets them."""
    (message,) = sample.conversation
    assert message["role"] == "user"
    return [part[part["type"]] for part in message["content"]]


def test_mmmu(tmp_path: Path) -> None:
    art, pair, seven, sides = samples_of("mmmu", write_mmmu(tmp_path))
    letter = "Answer with the option's letter from the given choices directly."
    assert content(art) == [png(11), f" Who drew it?\n(A) Dürer\n(B) Klee\n(C) Cranach\n\n{letter}"]
    assert content(pair) == [
        "Which is older, ",
        png(21),
        " or ",
        png(22),
        "?\n(A) the first\n(B) ",
        png(23),
        f"\n\n{letter}",
    ]
    assert content(seven) == ["What is seven times six? ", png(11), f"\n(A) 42\n(B) 43\n\n{letter}"]
    assert content(sides) == ["How many sides has ", png(21), "?\nAnswer the question using a single word or phrase."]
    assert [one.id for one in (art, sides)] == ["validation_Art_Theory_1", "validation_Math_2"]
    assert art.groups == ("Art and Design", "Art and Design/Art_Theory") and seven.groups == ("Science", "Science/Math")
    assert (art.expected, sides.expected) == ("B", ["24/7", "3.429"])
    assert art.judge("(B)").score == 1 and art.judge("Cranach, I would say it is by him").read_as == "C"
    assert sides.judge("It is 3.43").score == 1


def test_an_image_that_is_named_twice_stands_once_and_one_that_is_not_named_comes_first(tmp_path: Path) -> None:
    rows = [mmmu_row("Math", 1, "In <image 2>, not in <image 2>?", ["yes"], "A", images=2)]
    (sample,) = samples_of("mmmu", write_parquet(tmp_path / "validation.parquet", rows, MMMU_COLUMNS))
    first, before, second, after = content(sample)
    assert (first, before, second) == (png(11), "In ", png(12)) and after.startswith(", not in <image 2>?\n(A) yes")


def test_guesses_differ_by_question_and_not_by_run(tmp_path: Path) -> None:
    rows = [mmmu_row("Math", n, "?", ["w", "x", "y", "z"], "A") for n in range(1, 21)]
    file = write_parquet(tmp_path / "validation.parquet", rows, MMMU_COLUMNS)
    runs = [[sample.judge("no idea").read_as for sample in samples_of("mmmu", file)] for _ in range(2)]
    assert runs[0] == runs[1] and len(set(runs[0])) == 4


def test_ocrbench(tmp_path: Path) -> None:
    first, second, third = samples_of("ocrbench", write_ocrbench(tmp_path, [["one"], ["two", "2"], ["three"]]))
    assert content(first) == [png(0), "what is written in the image? (0)"]
    assert first.groups == ("Text Recognition", "Text Recognition/Regular Text Recognition")
    assert third.groups == ("Doc-oriented VQA",)
    assert second.expected == ["two", "2"] and second.judge("number 2").score == 1


def test_ocrbench_formulas_are_known_by_their_dataset(tmp_path: Path) -> None:
    """The benchmark's own JSON, with files for images. Red if the dataset's rule or its spelling changes."""
    rows = [
        {"dataset_name": name, "type": "Handwritten Mathematical Expression Recognition", "question": "?", "answers": "x ^ 2"}
        for name in ("HME100k", "other")
    ]
    for number, row in enumerate(rows):
        row["image_path"] = f"HME/{number}.png"
        (tmp_path / "OCRBench_Images" / "HME").mkdir(parents=True, exist_ok=True)
        (tmp_path / "OCRBench_Images" / "HME" / f"{number}.png").write_bytes(png(number))
    write_json(tmp_path / "OCRBench.json", rows)
    formula, other = samples_of("ocrbench", tmp_path)
    assert content(other) == [png(1), "?"]
    assert (formula.judge("x^2").score, other.judge("x^2").score) == (1, 0)


def test_docvqa(tmp_path: Path) -> None:
    samples = samples_of("docvqa", write_docvqa(tmp_path, [["1988"], ["a", "b"], ["c"], ["d"], ["e"]]))
    assert [sample.id for sample in samples] == ["500", "501", "502", "503", "504"]
    assert content(samples[3]) == [
        png(3),
        "What is the date of page 3?\nAnswer the question using a single word or phrase.",
    ]
    assert samples[0].groups == ("form",) and samples[1].groups == ("form", "layout")
    assert samples[0].judge("1989").score == pytest.approx(0.75)


@pytest.mark.parametrize("layout", ["usual", "m4", "jsonl", "own"])
def test_chartqa(tmp_path: Path, layout: str) -> None:
    """The layouts of three publishers give the same samples, and so do JSON lines."""
    rows = chartqa_rows(["12", "yes", "3"])
    if layout == "usual":
        write_chartqa(tmp_path, ["12", "yes", "3"])
    elif layout == "m4":
        other = [
            {
                "image": row["image"],
                "query": row["question"],
                "label": [row["answer"]],
                "human_or_machine": int(row["type"] != "human_test"),
            }
            for row in rows
        ]
        write_parquet(tmp_path / "data" / "test-00000-of-00001.parquet", other, CHARTQA_M4_COLUMNS)
    elif layout == "jsonl":
        for number in range(3):
            (tmp_path / f"{number}.png").write_bytes(png(number))
        write_json(tmp_path / "test.jsonl", [{**row, "image": f"{number}.png"} for number, row in enumerate(rows)])
    else:
        (tmp_path / "test" / "png").mkdir(parents=True)
        for name in ("human", "augmented"):
            chosen = [(number, row) for number, row in enumerate(rows) if row["type"] == f"{name}_test"]
            for number, _ in chosen:
                (tmp_path / "test" / "png" / f"{number}.png").write_bytes(png(number))
            own = [{"imgname": f"{n}.png", "query": row["question"], "label": row["answer"]} for n, row in chosen]
            write_json(tmp_path / "test" / f"test_{name}.json", own)
    samples = samples_of("chartqa", tmp_path)
    if layout == "own":  # one file after another
        samples = [samples[1], samples[0], samples[2]]
    assert [sample.groups for sample in samples] == [("human",), ("augmented",), ("human",)]
    assert [sample.expected for sample in samples] == ["12", "yes", "3"]
    assert content(samples[1]) == [png(1), "What is the value of bar 1?\nAnswer the question with a single word."]
    assert samples[0].judge("12.5").score == 1


def test_some_samples_are_spread_and_keep_their_ids(tmp_path: Path) -> None:
    data = write_docvqa(tmp_path, [[str(n)] for n in range(11)])
    whole = {sample.id: content(sample) for sample in samples_of("docvqa", data)}
    few = samples_of("docvqa", data, samples=4)
    assert [sample.id for sample in few] == ["500", "502", "505", "508"]
    assert all(content(sample) == whole[sample.id] for sample in few)
    assert len(samples_of("docvqa", data, samples=99)) == 11


def test_some_groups(tmp_path: Path) -> None:
    data = write_mmmu(tmp_path)
    assert [one.id for one in samples_of("mmmu", data, groups=["Math"])] == ["validation_Math_1", "validation_Math_2"]
    assert len(samples_of("mmmu", data, groups=["Art and Design", "Math"])) == 4
    with pytest.raises(ConfigError, match="no subject 'Maths'; there are Art and Design, Art_Theory, Science, Math"):
        load_benchmark(BENCHMARKS["mmmu"], data, groups=["Maths"])


def test_an_incomplete_dataset_is_noticed(tmp_path: Path) -> None:
    task = load_benchmark(BENCHMARKS["mmmu"], write_mmmu(tmp_path), samples=3)
    assert task.notes == (
        "4 samples are here; the published validation split has 900.",
        "3 of 4 samples are asked.",
    )


def test_the_hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As huggingface_hub lays it out: a snapshot of links to blobs, and the revision that main stands for."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ConfigError) as absent:
        load_benchmark(BENCHMARKS["chartqa"])
    assert "hf download lmms-lab/ChartQA --repo-type dataset" in str(absent.value)
    assert "data/test-00000-of-00001.parquet" in str(absent.value)
    cached = tmp_path / "datasets--lmms-lab--ChartQA"
    commit = "0123456789" * 4
    write_chartqa(cached / "snapshots" / commit, ["1", "2"])
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text(commit)
    assert load_benchmark(BENCHMARKS["chartqa"]).count == 2


def test_what_is_wrong_is_said(tmp_path: Path) -> None:
    def refuses(sentence: str, name: str, data: Path | None, **options: Any) -> None:
        with pytest.raises(ConfigError, match=re.escape(sentence)) as refused:
            list(load_benchmark(BENCHMARKS[name], data, **options).samples())
        assert str(refused.value).endswith(".") and "\n" not in str(refused.value)

    empty = tmp_path / "empty"
    empty.mkdir()
    refuses("has no file of the validation split of MMMU; expected is the dataset MMMU/MMMU", "mmmu", empty)
    refuses("there is no such folder or file", "mmmu", tmp_path / "nothing")
    refuses("--split is 'test', but MMMU can be scored on validation, dev only", "mmmu", empty, split="test")
    data = write_chartqa(tmp_path / "chartqa", ["1"])
    refuses("--samples is 0", "chartqa", data, samples=0)
    rows = [mmmu_row("Alchemy", 1, "?", ["a"], "A")]
    refuses("names no subject of MMMU", "mmmu", write_parquet(tmp_path / "a.parquet", rows, MMMU_COLUMNS))
    rows = [{**mmmu_row("Math", 1, "?", ["a"], "A"), "options": "[oops"}]
    refuses("cannot be read: '[oops'", "mmmu", write_parquet(tmp_path / "b.parquet", rows, MMMU_COLUMNS))
    broken = tmp_path / "test.parquet"
    broken.write_bytes(b"not parquet")
    refuses("cannot be read as parquet", "chartqa", broken)
    (tmp_path / "bad.jsonl").write_text("{")
    refuses("cannot be read as JSON", "chartqa", tmp_path / "bad.jsonl")
    refuses("is not a list of JSON objects", "chartqa", write_json(tmp_path / "number.json", 1))
    lost = [{"type": "human_test", "question": "?", "answer": "1", "image": "lost.png"}]
    refuses("names an image 'lost.png'", "chartqa", write_json(tmp_path / "lost.jsonl", lost))
    (tmp_path / "outside.png").write_bytes(png(1))
    for path in (str(tmp_path / "outside.png"), "../outside.png"):
        away = [{**lost[0], "image": path}]
        refuses("outside its own folder", "chartqa", write_json(tmp_path / "inner" / "test.jsonl", away))
    other = write_parquet(tmp_path / "other.parquet", [{"text": "x", "image": image(1)}], {"text": pa.string(), "image": IMAGE})
    refuses("has no 'question' or 'query'", "chartqa", other)
    number = [{"type": "human_test", "question": 7, "answer": "1", "image": "lost.png"}]
    refuses("has 7 as 'question', but it must be text", "chartqa", write_json(tmp_path / "number.jsonl", number))


def test_only_row_groups_that_are_needed_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Red if asking a few samples of a large dataset reads all its images."""
    data = write_chartqa(tmp_path, [str(n) for n in range(8)])  # four row groups
    read: list[int] = []
    plain = pq.ParquetFile.iter_batches

    def watch(self: Any, *arguments: Any, **options: Any) -> Any:
        if "image" in options["columns"]:
            read.extend(options["row_groups"])
        return plain(self, *arguments, **options)

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", watch)
    assert [sample.id for sample in samples_of("chartqa", data, samples=2)] == ["0", "4"]
    assert read == [0, 2]


def test_without_pyarrow_it_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = write_chartqa(tmp_path, ["1"])
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ConfigError, match=re.escape("pip install 'sightline-vlm[eval]'")):
        load_benchmark(BENCHMARKS["chartqa"], data)
