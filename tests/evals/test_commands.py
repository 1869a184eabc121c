"""`sightline eval` as a user runs it: the embedded model in this process, a real server, and runs that are interrupted."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from evals.published_data import png, write_chartqa, write_docvqa, write_mmmu, write_ocrbench
from evals.stub_server import completion, stub
from server.running import RunningServer, running, wait_for
from sightline import LLM, SamplingParams
from sightline.cli.main import main
from sightline.config import Config
from sightline.evals.in_process import InProcess
from sightline.prompt.template import ChatTemplate
from sightline.types import Completion

CPU = ("--device", "cpu", "--kv-cache-gb", "0.1", "--embedding-cache-gb", "0.05")


@pytest.fixture(scope="module")
def said() -> dict[str, list[str]]:
    """What the embedded model answers, by the library alone, to the prompts of each benchmark."""
    phrase = "\nAnswer the question using a single word or phrase."
    prompts = {
        "ocrbench": ("what is written in the image? ({})", 128),
        "docvqa": ("What is the date of page {}?" + phrase, 32),
        "chartqa": ("What is the value of bar {}?\nAnswer the question with a single word.", 16),
    }
    found: dict[str, list[str]] = {}
    with LLM(device="cpu", kv_cache_gb=0.1, embedding_cache_gb=0.05) as llm:
        for task, (prompt, most) in prompts.items():
            asked = [
                [{"role": "user", "content": [{"type": "image", "image": png(n)}, {"type": "text", "text": prompt.format(n)}]}]
                for n in range(4)
            ]
            answers = llm.chat(asked, SamplingParams(temperature=0, max_tokens=most))
            found[task] = [answer.text for answer in answers]
    return found


def records(path: Path) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    head, *found = [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n")[:-1]]
    return head, {record["id"]: record for record in found}


def table_of(out: str) -> dict[str, list[str]]:
    """Figures by the name of the row."""
    return {m[1].strip(): m[2].split() for m in re.finditer(r"^ *(\S.*?)  +(\d+ .*)$", out, re.MULTILINE)}


def without_time(out: str) -> str:
    return re.sub(r"^Time .*?, (?=[\d,]+ input)", "", out, flags=re.MULTILINE)


WRONG = "§§§"


@pytest.mark.parametrize("task", ["ocrbench", "docvqa", "chartqa"])
def test_published_in_process(
    task: str, said: dict[str, list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two of four references are what the model says to the benchmark's prompt: that is the score. Red if prompts differ."""
    answers = said[task]
    right = [answers[0], WRONG, answers[2], WRONG]
    if task == "chartqa":
        data = write_chartqa(tmp_path / "data", right)
    else:
        data = {"ocrbench": write_ocrbench, "docvqa": write_docvqa}[task](tmp_path / "data", [[one] for one in right])
    scores, samples = tmp_path / "scores.json", tmp_path / "samples.jsonl"
    options = ["--data", str(data), "--json", str(scores), "--samples-out", str(samples), "--concurrency", "2"]
    assert main(["eval", task, *options, *CPU]) == 0
    out = capsys.readouterr().out
    assert table_of(out)["overall"] == ["4", "2", "50.0%", "25.0%"]
    head, found = records(samples)
    assert head["settings"]["task"] == task and head["settings"]["sampling"]["temperature"] == 0
    assert head["answerer"]["settings"] == {"kv_cache_gb": 0.1, "embedding_cache_gb": 0.05}
    assert [found[name]["got"] for name in sorted(found)] == answers
    assert [found[name]["correct"] for name in sorted(found)] == [True, False, True, False]
    kept = json.loads(scores.read_text())
    assert (kept["overall"]["score"], kept["overall"]["n"], kept["failed"]) == (0.5, 4, 0)
    assert "4 samples are here; the published" in kept["remarks"][0] and kept["remarks"][0] in out
    groups = {"ocrbench": "Regular Text Recognition", "docvqa": "layout", "chartqa": "human"}
    figures = {"ocrbench": ["2", "1"], "docvqa": ["2", "0"], "chartqa": ["2", "2"]}
    assert table_of(out)[groups[task]][:2] == figures[task]


def test_mmmu_in_process(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Domains with their subjects; guesses are counted; asking again asks nobody and says the same."""
    data, scores, samples = write_mmmu(tmp_path / "data"), tmp_path / "scores.json", tmp_path / "samples.jsonl"
    command = ["eval", "mmmu", "--data", str(data), "--json", str(scores), "--samples-out", str(samples), *CPU]
    assert main(command) == 0
    first = capsys.readouterr().out
    lines = first.splitlines()
    assert lines[0].split()[:3] == ["subject", "n", "correct"]
    assert [line[: len("Art and Design")].rstrip() for line in lines[1:6]] == [
        "Art and Design",
        "  Art_Theory",
        "Science",
        "  Math",
        "overall",
    ]
    _, found = records(samples)
    guesses = [one for one in found.values() if one["note"]]
    assert (f"{len(guesses)} of 4 answers: named no option" in first) == bool(guesses)
    choices = [one for one in found.values() if isinstance(one["expected"], str)]
    assert len(choices) == 3 and all(one["correct"] == (one["read_as"] == one["expected"]) for one in choices)
    before = samples.read_bytes()
    assert main(command) == 0
    again = capsys.readouterr().out
    assert without_time(again) == without_time(first) and samples.read_bytes() == before
    tokens = [sum(one[f"{kind}_tokens"] for one in found.values()) for kind in ("prompt", "completion")]
    assert f" s, {tokens[0]:,} input tokens, {tokens[1]:,} output tokens" in first
    assert "(4 of 4 samples were answered before)" in again


def test_settings_of_another_run_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, samples = write_chartqa(tmp_path / "data", ["1"]), tmp_path / "samples.jsonl"
    with stub(lambda body: completion("1")) as server:
        command = ["eval", "chartqa", "--data", str(data), "--samples-out", str(samples), "--base-url", server.url]
        assert main(command) == 0
        capsys.readouterr()
        assert main([*command, "--max-tokens", "9"]) == 1
    err = capsys.readouterr().err
    assert "holds another run: sampling.max_tokens there and here is 16 and 9" in err and err.count("\n") == 1


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with running(tmp_path_factory.mktemp("server"), "--api-key", "the-key", key="the-key") as made:
        yield made


@pytest.mark.parametrize("task", ["mmmu", "signs"])
def test_a_real_server_answers_as_the_library(
    task: str, server: RunningServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Several images, turns and clips through `sightline serve` and in process; `agree` finds no difference."""
    if task == "mmmu":
        options = ["--data", str(write_mmmu(tmp_path / "data"))]
    else:
        options = ["--samples", "2", "--skills", "sign", "chart", "two_images", "video", "--seed", "300"]
    a, b = tmp_path / "served.jsonl", tmp_path / "here.jsonl"
    served = ["--base-url", server.url, "--api-key", "the-key", "--concurrency", "3"]
    served += ["--stream"] if task == "mmmu" else []
    assert main(["eval", task, *options, "--samples-out", str(a), *served]) == 0
    shown = capsys.readouterr().out
    assert main(["eval", task, *options, "--samples-out", str(b), *CPU]) == 0
    assert without_time(capsys.readouterr().out) == without_time(shown)
    assert main(["eval", "agree", str(a), str(b), "--fail-below", "1"]) == 0
    assert "0 of " in capsys.readouterr().out.splitlines()[-1]
    head, found = records(a)
    assert head["answerer"]["server"] == f"{server.url}/v1" and "the-key" not in a.read_text()
    assert all(one["prompt_tokens"] == records(b)[1][name]["prompt_tokens"] > 0 for name, one in found.items())


def test_a_wrong_key_ends_the_run(server: RunningServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = write_chartqa(tmp_path, ["1"])
    command = ["eval", "chartqa", "--data", str(data), "--base-url", server.url, "--api-key", "wrong"]
    assert main(command) == 1
    err = capsys.readouterr().err
    assert "answered 401" in err and err.count("\n") == 1


def test_a_sample_that_the_server_refuses_counts_as_wrong(
    server: RunningServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = write_chartqa(tmp_path / "data", ["1", "2"])
    options = ["--base-url", server.url, "--api-key", "the-key", "--extra-body", '{"temperature": -1}']
    assert main(["eval", "chartqa", "--data", str(data), *options]) == 1
    out = capsys.readouterr().out
    assert "2 of 2 samples could not be answered and count as wrong:" in out and "2 times: The server answered 400" in out


def start(*arguments: str | Path) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "sightline.cli.main", "eval", *map(str, arguments)]

    def listen_to_interrupts() -> None:  # a shell tells what it starts in the background, such as these tests, not to
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, **pipes, env={**os.environ}, preexec_fn=listen_to_interrupts)


def test_a_killed_run_goes_on_where_it_was(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, samples = write_chartqa(tmp_path / "data", [str(n) for n in range(30)]), tmp_path / "samples.jsonl"
    slow = threading.Event()

    def answer(body: dict[str, Any]) -> Any:
        slow.wait(0.1)
        return completion(re.findall(r"bar (\d+)", body["messages"][0]["content"][1]["text"])[0])

    with stub(answer) as server:
        command = ("chartqa", "--data", data, "--samples-out", samples, "--base-url", server.url, "--concurrency", "2")
        first = start(*command)
        wait_for(lambda: (samples.exists() and samples.read_text().count("\n") >= 5) or None, "five lines")
        first.kill()
        first.communicate()
        slow.set()
        finished = len(records(samples)[1])
        assert 4 <= finished < 30
        asked = len(server.bodies)
        assert main(["eval", *map(str, command)]) == 0
        assert len(server.bodies) - asked == 30 - finished
    assert table_of(capsys.readouterr().out)["overall"] == ["30", "30", "100.0%", "0.0%"]
    assert len(records(samples)[1]) == 30


def test_an_interrupted_run_ends_at_once(tmp_path: Path) -> None:
    """Although the server has not answered. Red if the end waits for threads that wait for answers."""
    data = write_chartqa(tmp_path / "data", ["1", "2"])
    free = threading.Event()
    with stub(lambda body: (free.wait(120) and completion("1")) or completion("2")) as server:
        kept = ("--samples-out", tmp_path / "samples.jsonl")
        run = start("chartqa", "--data", data, "--base-url", server.url, "--timeout", "100", *kept)
        wait_for(lambda: len(server.bodies) == 2 or None, "both questions")
        begun = time.monotonic()
        run.send_signal(signal.SIGINT)
        _, err = run.communicate(timeout=60)
        assert run.returncode == 130 and time.monotonic() - begun < 60
        assert err.startswith("Interrupted; finished samples are in") and err.count("\n") == 1
        free.set()


def test_a_server_that_goes_away_is_told_with_the_way_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, samples = write_chartqa(tmp_path / "data", ["1", "2"]), tmp_path / "samples.jsonl"

    def answer(body: dict[str, Any]) -> Any:
        return completion("1") if "bar 0" in json.dumps(body) else (401, {"error": {"message": "not you"}})

    with stub(answer) as server:
        options = ["--base-url", server.url, "--concurrency", "1", "--samples-out", str(samples)]
        assert main(["eval", "chartqa", "--data", str(data), *options]) == 1
    err = capsys.readouterr().err
    assert f"Finished samples are in {samples}; the same command goes on from there." in err and err.count("\n") == 1
    assert list(records(samples)[1]) == ["0"]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--api-key", "k"], "--api-key means nothing without --base-url"),
        (["--stream"], "--stream means nothing without --base-url"),
        (["--extra-body", '{"chat_template_kwargs": 1}', *CPU], "chat_template_kwargs is 1, but must be a JSON object"),
        (["--base-url", "http://x", "--model", "m"], "--model is for a model in this process"),
        (["--base-url", "nowhere"], "--base-url is 'nowhere', but must be an http(s) address"),
        (["--extra-body", "[1]"], "--extra-body is '[1]', but must be a JSON object"),
        (["--max-tokens", "0"], "--max-tokens is 0"),
        (["--extra-body", '{"best_of": 2}', *CPU], "no sampling parameter 'best_of'"),
    ],
)
def test_wrong_options_are_refused(
    options: list[str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["eval", "chartqa", "--data", str(write_chartqa(tmp_path, ["1"])), *options]) == 1
    err = capsys.readouterr().err
    assert sentence in err and err.count("\n") == 1


def test_the_key_is_in_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, scores, samples = write_chartqa(tmp_path / "data", ["1"]), tmp_path / "scores.json", tmp_path / "samples.jsonl"
    with stub(lambda body: completion("1")) as server:
        for key in (["--api-key", "hidden"], ["--api-key=hidden"]):
            command = ["eval", "chartqa", "--data", str(data), "--base-url", server.url, *key]
            command += ["--json", str(scores), "--samples-out", str(samples)]
            monkeypatch.setattr(sys, "argv", ["sightline", *command])
            assert main(command) == 0
            assert "hidden" not in scores.read_text() + samples.read_text()
            assert "--api-key" in json.loads(scores.read_text())["command"]
            samples.unlink()
    assert server.keys == ["Bearer hidden"] * 2


class Thinking:
    """An LLM whose template opens a block of reasoning."""

    def __init__(self, opens: bool, text: str) -> None:
        self.config, self.device, self.dtype = Config(), "cpu", "float32"
        opening = "{% if enable_thinking is not false %}<think>\n{% endif %}" if opens else ""
        self.template = ChatTemplate("{{ messages[0].content }}" + opening)
        self._text = text
        self.kwargs: list[Any] = []

    def chat(self, messages: Any, sampling: SamplingParams, **options: Any) -> Any:
        self.kwargs.append(options["chat_template_kwargs"])
        return [Completion(self._text, (1, 2), "stop", 3, {})]

    def close(self) -> None:
        pass


@pytest.mark.parametrize(
    ("opens", "text", "content"),
    [
        (True, "it may be (A)\n</think>\n\n(B)", "(B)"),
        (True, "it may be (A), or", ""),
        (False, "<think>\n(A)?</think>(B)", "(B)"),
        (False, "(B)", "(B)"),
    ],
)
def test_reasoning_is_no_part_of_an_answer(opens: bool, text: str, content: str) -> None:
    assert InProcess(Thinking(opens, text)).ask([], {}).text == content


# Red if the template's options do not reach it, or if an answer is read as thoughts that they have turned off.
def test_thinking_can_be_turned_off() -> None:
    llm = Thinking(True, "(B)")
    answerer = InProcess(llm)
    off = {"enable_thinking": False}
    assert answerer.ask([], {"chat_template_kwargs": off}).text == "(B)"
    assert answerer.ask([], {}).text == "" and llm.kwargs == [off, {}]


@pytest.mark.parametrize("family", ["qwen3-vl", "qwen2.5-vl", "glm-4.1v", "glm-4.6v-flash"])
def test_templates_of_every_family_can_be_asked(family: str, tiny_checkpoints: dict[str, Path]) -> None:
    """Whether a template opens reasoning is found out from a message of text alone."""
    llm = Thinking(False, "(B)")
    llm.template = ChatTemplate.from_folder(tiny_checkpoints[family])
    assert InProcess(llm).ask([], {}).text == "(B)"
