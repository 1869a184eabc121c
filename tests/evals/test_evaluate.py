"""The evaluation: what is asked, how answers are counted, what is written down; and the command as a user runs it."""

import json
import math
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sightline.config import MediaConfig
from sightline.errors import ConfigError
from sightline.evals.signs import SKILL_NAMES, make_example
from sightline.evals.signs.clips import FRAME_COUNTS
from sightline.evals.signs.conversation import conversations, encode_clip
from sightline.evals.signs.evaluate import as_json, evaluate, failure_lines
from sightline.evals.signs.seen import changes, clip_header
from sightline.media.decode import decode_video
from sightline.media.source import load_video
from sightline.models.registry import read_model_spec, read_processor_spec
from sightline.types import Completion, SamplingParams


class Scripted:
    """Knows the answers to some skills by their questions and pictures, and is wrong about every third question."""

    def __init__(self, right: Sequence[str], samples: int) -> None:
        self.batches: list[int] = []
        self.sampling: list[SamplingParams] = []
        self.asked: list[list[dict[str, Any]]] = []
        self.script: list[str] = []
        for skill in SKILL_NAMES:
            for seed in range(5, 5 + samples):
                for turn in make_example(seed, "heldout", skill).turns:
                    known = skill in right and len(self.script) % 3 != 0
                    self.script.append(f" {turn.answer}\n" if known else turn.answer.swapcase() + "~")

    def chat(self, messages: Sequence[list[dict[str, Any]]], sampling: SamplingParams) -> list[Completion]:
        self.batches.append(len(messages))
        self.sampling.append(sampling)
        self.asked += messages
        texts, self.script = self.script[: len(messages)], self.script[len(messages) :]
        return [Completion(text, (), "stop", 0, {}) for text in texts]


def test_scores_are_exactly_what_was_answered() -> None:
    """Red if blanks are not stripped, case is ignored, a turn is lost, or the formula of the error changes."""
    right = ("sign", "chart", "video")
    llm = Scripted(right, samples=12)
    script = list(llm.script)
    result = evaluate(llm, 12, seed=5, batch=7)
    assert [score.skill for score in result.scores] == list(SKILL_NAMES)
    start = 0
    for score in result.scores:
        turns = sum(len(make_example(seed, "heldout", score.skill).turns) for seed in range(5, 17))
        expected = sum(number % 3 != 0 for number in range(start, start + turns)) if score.skill in right else 0
        assert (score.n, score.correct) == (turns, expected)
        assert score.standard_error == math.sqrt(expected / turns * (1 - expected / turns) / turns)
        start += turns
    assert max(llm.batches) == 7 and sum(llm.batches) == len(script) == len(result.asked)
    assert {(params.temperature, params.repetition_penalty) for params in llm.sampling} == {(0.0, 1.0)}
    assert [one.got for one in result.asked] == script
    assert len(result.failures) == sum(score.n - score.correct for score in result.scores)


def test_report() -> None:
    llm = Scripted(("phone",), samples=6)
    llm.script = llm.script[6:]  # those of the signs
    result = evaluate(llm, 6, ["phone"], seed=5)
    (score,) = result.scores
    assert (score.n, score.correct) == (6, 4)
    wrong = result.failures[0]
    assert failure_lines(result)[0] == f"phone       seed 5: {wrong.question} {wrong.expected!r}, got {wrong.got!r}"
    kept = json.loads(json.dumps(as_json(result)))
    assert kept["skills"] == [
        {"skill": "phone", "n": 6, "correct": 4, "accuracy": 4 / 6, "standard_error": pytest.approx(0.19245, abs=1e-5)}
    ]
    assert [one["seed"] for one in kept["failures"]] == [5, 8]


def test_many_failures_are_shown_in_part() -> None:
    llm = Scripted((), samples=9)
    lines = failure_lines(evaluate(llm, 9, ["sign"], seed=5))
    assert len(lines) == 4 and lines[-1].split() == ["sign", "and", "6", "more"]


def test_later_turns_come_with_the_right_earlier_answers() -> None:
    example = next(example for seed in range(50) if len((example := make_example(seed, "heldout", "two_images")).turns) == 2)
    first, second = conversations(example)
    assert [part["type"] for part in first[0]["content"]] == ["image", "image", "text"] and len(first) == 1
    assert [message["role"] for message in second] == ["user", "assistant", "user"]
    assert second[1]["content"] == example.turns[0].answer
    assert second[2]["content"] == [{"type": "text", "text": example.turns[1].question}]
    for part, image in zip(second[0]["content"], example.images, strict=False):
        assert np.array_equal(np.asarray(part["image"]), image)


def test_clips_are_encoded_without_loss() -> None:
    for seed in range(6):
        example = make_example(seed, "heldout", "video")
        assert example.frames is not None
        encoded = encode_clip(example.frames, example.fps)
        assert encoded == encode_clip(example.frames, example.fps)
        ref = load_video(encoded, MediaConfig())
        header = clip_header(len(example.frames))
        assert (ref.header.width, ref.header.height) == (96, 64)
        assert (ref.header.frame_count, ref.header.fps) == (header.frame_count, header.fps)  # type: ignore[union-attr]
        assert np.array_equal(decode_video(ref, range(len(example.frames))), example.frames)


@pytest.mark.parametrize("family", ["qwen3-vl", "qwen2.5-vl", "glm-4.1v", "glm-4.6v-flash"])
def test_every_family_sees_each_frame_once(tiny_checkpoints: dict[str, Path], family: str) -> None:
    """Red if the clips' rate no longer fits the sampling rules."""
    folder = tiny_checkpoints[family]
    processor = read_processor_spec(folder, read_model_spec(folder), MediaConfig())
    for count in FRAME_COUNTS:
        assert processor.layout(clip_header(count)).frame_indices == tuple(range(count))
    assert not any("takes" in change for change in changes(processor))


def test_a_processor_that_resizes_is_noticed(tiny_checkpoints: dict[str, Path]) -> None:
    folder = tiny_checkpoints["qwen3-vl"]
    spec = read_model_spec(folder)
    as_published = list(changes(read_processor_spec(folder, spec, MediaConfig())))
    assert len(as_published) == 1 and "64x256" in as_published[0]  # the smallest area of Qwen3-VL is 256x256
    assert not list(changes(read_processor_spec(folder, spec, MediaConfig(min_pixels=4096))))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"samples": 0}, "samples is 0"),
        ({"samples": 1, "batch": 0}, "batch is 0"),
        ({"samples": 1, "skills": ["sign", "song"]}, "'song'"),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        evaluate(Scripted((), samples=0), **arguments)


def sightline(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "sightline.cli.main", "eval", "signs", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_command(tiny_checkpoints: dict[str, Path], tmp_path: Path) -> None:
    scores, samples = tmp_path / "kept" / "scores.json", tmp_path / "kept" / "samples.jsonl"
    model = tiny_checkpoints["qwen3-vl"]
    options = ("--samples", "2", "--seed", "9", "--batch", "4", "--min-pixels", "4096", "--max-model-len", "1024")
    done = sightline("--model", model, *options, "--json", scores, "--samples-out", samples)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["skill", "n", "correct", "accuracy", "std.", "error"]
    assert [line.split()[0] for line in lines[1 : 1 + len(SKILL_NAMES)]] == list(SKILL_NAMES)
    kept = json.loads(scores.read_text(encoding="utf-8"))
    _, *records = [json.loads(line) for line in samples.read_text(encoding="utf-8").split("\n")[:-1]]
    assert kept["seed"] == 9 and kept["samples"] == 2 and kept["model"] == str(model)
    assert sum(skill["n"] for skill in kept["skills"]) == len(records)
    assert {record["seed"] for record in records} == {9, 10}
    for record in records:
        turn = make_example(record["seed"], "heldout", record["skill"]).turns[record["turn"]]
        assert (turn.question, turn.answer) == (record["question"], record["expected"])


def test_command_refuses_in_one_sentence(tiny_checkpoints: dict[str, Path]) -> None:
    wrong = sightline("--model", tiny_checkpoints["qwen3-vl"], "--skills", "song")
    assert wrong.returncode == 1 and wrong.stderr.count("\n") == 1 and "'song'" in wrong.stderr
