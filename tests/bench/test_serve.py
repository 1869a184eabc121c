"""`sightline bench serve` against a scripted server: what it sends, and each figure of what it prints and keeps."""

import contextlib
import io
import json
import os
import platform
import pty
import re
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import pybase64
import pytest
from PIL import Image

from bench.stub import MODEL, RunningStub, Script, chunk, event, refusal, stream, usage, whole
from sightline.cli.main import main
from sightline.models.locate import EMBEDDED
from sightline.prompt.tokenizer import Tokenizer

SLACK_S = 5.0  # by which a busy machine may be late; never early


def bench(stub_url: str, *flags: str) -> int:
    return main(["bench", "serve", "--base-url", stub_url, "--no-progress", "--seed", "3", *flags])


def printed(text: str) -> dict[str, str]:
    return {name.strip(): value.strip() for name, _, value in (line.rpartition(": ") for line in text.splitlines()) if name}


def kept(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text().splitlines()[-1]))


# The scripts of four questions and what must be true of their times, in seconds.
SCRIPTS = (
    stream([0.2, 0.1, 0.1], usage(100, 3, cached=16, image=64), role_first=0.1),
    stream([0.1, 0.3], usage(50, 4, cached=0, image=32)),  # four tokens in two chunks
    refusal(429, "Too many requests.", pause=0.05),
    stream([0.15], usage(30, 1, cached=8, image=20)),
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, Any], list[Any]]:
    """One question at a time, so that the n-th gets the n-th script."""
    file = tmp_path_factory.mktemp("serve") / "results" / "stub.jsonl"
    shown = io.StringIO()
    with RunningStub(*SCRIPTS) as stub, contextlib.redirect_stdout(shown):
        flags = ["--dataset-name", "text", "--num-prompts", "4", "--max-concurrency", "1", "--num-warmups", "0"]
        assert bench(stub.url, *flags, "--input-len", "12", "--output-len", "7", "--output", str(file), "--save-texts") == 0
        return shown.getvalue(), kept(file), stub.questions


# Red if a time is taken from the wrong chunk: each lower bound is the script's, and no time can be shorter.
def test_times_are_those_of_the_script(run: tuple[str, dict[str, Any], list[Any]]) -> None:
    record = run[1]
    assert record["ttfts"][2] == record["latencies"][2] == 0.0 and record["itls"][2] == []  # the failed one
    for place, ttft, gaps in ((0, 0.1, [0.2, 0.1, 0.1]), (1, 0.1, [0.3]), (3, 0.15, [])):
        assert ttft <= record["ttfts"][place] < ttft + SLACK_S
        assert len(record["itls"][place]) == len(gaps)
        assert ttft + sum(gaps) <= record["latencies"][place] < ttft + sum(gaps) + SLACK_S
        assert record["ttfts"][place] + sum(record["itls"][place]) == pytest.approx(record["latencies"][place], abs=1e-5)
        for found, gap in zip(record["itls"][place], gaps, strict=True):
            assert gap - 0.05 <= found < gap + SLACK_S  # the chunk before may have been read late
    starts = record["start_times"]
    assert all(starts[place + 1] >= starts[place] + record["latencies"][place] for place in range(3))
    assert record["duration"] >= 1.1 and record["duration"] == pytest.approx(starts[3] + record["latencies"][3], abs=0.5)
    assert record["mean_first_text_ms"] > record["mean_ttft_ms"] + 60  # one of three had its role 0.2 s before its first word
    assert record["text_came_later"] == 1


# Red if a figure is computed otherwise than defined, or the block shows another than the file has.
def test_figures_by_hand_from_the_times(run: tuple[str, dict[str, Any], list[Any]]) -> None:
    text, record, _ = run
    shown = printed(text)
    good = [0, 1, 3]
    duration = record["duration"]
    ttfts = [1000 * record["ttfts"][place] for place in good]
    latencies = [1000 * record["latencies"][place] for place in good]
    itls = [1000 * gap for place in good for gap in record["itls"][place]]
    tpots = [(latencies[0] - ttfts[0]) / 2, (latencies[1] - ttfts[1]) / 3]
    for key, name, values in (
        ("ttft", "TTFT", ttfts),
        ("e2el", "E2E Latency", latencies),
        ("itl", "ITL", itls),
        ("tpot", "TPOT", tpots),
    ):
        wanted = {
            "mean": statistics.fmean(values),
            "median": statistics.median(values),
            "p90": by_hand(values, 0.90),
            "p95": by_hand(values, 0.95),
            "p99": by_hand(values, 0.99),
            "max": max(values),
        }
        for which, value in wanted.items():
            assert record[f"{which}_{key}_ms"] == pytest.approx(value, abs=0.01), (which, key)
            word = which.upper() if which[0] == "p" else which.capitalize()
            assert float(shown[f"{word} {name} (ms)"]) == pytest.approx(value, abs=0.02), (which, key)
        assert record[f"std_{key}_ms"] == pytest.approx(statistics.pstdev(values), abs=0.01)
    for label, key, value in (
        ("Successful requests", "completed", 3),
        ("Failed requests", "failed", 1),
        ("Benchmark duration (s)", "duration", duration),
        ("Total input tokens", "total_input_tokens", 180),
        ("Total input text tokens", "total_input_text_tokens", 64),
        ("Total input vision tokens", "total_input_vision_tokens", 116),
        ("Total cached tokens", "total_cached_tokens", 24),
        ("Total generated tokens", "total_output_tokens", 8),
        ("Request throughput (req/s)", "request_throughput", 3 / duration),
        ("Input token throughput (tok/s)", "input_throughput", 180 / duration),
        ("Output token throughput (tok/s)", "output_throughput", 8 / duration),
        ("Total token throughput (tok/s)", "total_token_throughput", 188 / duration),
        ("Concurrency", "concurrency", sum(latencies) / 1000 / duration),
        ("Peak concurrent requests", "max_concurrent_requests", 1),
        ("Peak output token throughput (tok/s)", "max_output_tokens_per_s", record["max_output_tokens_per_s"]),
    ):
        assert record[key] == pytest.approx(value, rel=1e-4), key
        assert float(shown[label]) == pytest.approx(value, abs=0.006), label
    assert shown["HTTP 429"] == "1" and "Too many requests." in text
    assert record["failures"] == [{"kind": "HTTP 429", "count": 1, "example": "Too many requests."}]
    assert record["errors"] == ["", "", "HTTP 429: Too many requests.", ""]
    assert record["generated_texts"] == ["w0 w1 w2 ", "w0 w1 ", "", "w0 "]
    assert record["input_lens"] == [100, 50, 0, 30] and record["output_lens"] == [3, 4, 0, 1]


def by_hand(values: list[float], share: float) -> float:
    """The value at a share of the way from the smallest to the largest, in between by a straight line."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


# What programs that read results of `vllm bench serve` look for.
VLLM_KEYS = """
date endpoint_type backend label model_id num_prompts request_rate burstiness max_concurrency duration completed failed
total_input_tokens total_output_tokens request_throughput request_goodput output_throughput total_token_throughput
input_lens output_lens ttfts itls latencies start_times queue_times generated_texts errors max_output_tokens_per_s
max_concurrent_requests mean_ttft_ms median_ttft_ms std_ttft_ms p99_ttft_ms mean_tpot_ms median_tpot_ms std_tpot_ms p99_tpot_ms
mean_itl_ms median_itl_ms std_itl_ms p99_itl_ms mean_e2el_ms median_e2el_ms std_e2el_ms p99_e2el_ms
""".split()


def test_names_of_the_figures(run: tuple[str, dict[str, Any], list[Any]]) -> None:
    record = run[1]
    assert set(VLLM_KEYS) <= set(record)
    assert record["request_rate"] == "inf" and record["model_id"] == MODEL and record["num_prompts"] == 4


# Red if results that are published would tell where they were made.
def test_results_say_nothing_of_this_machine(run: tuple[str, dict[str, Any], list[Any]]) -> None:
    text = json.dumps(run[1])
    assert platform.node() not in text and str(Path.cwd()) not in text and "127.0.0.1" not in text
    assert set(run[1]["environment"]) == {"sightline", "python", "system", "machine", "cpus"}


def test_what_is_sent(run: tuple[str, dict[str, Any], list[Any]]) -> None:
    questions = run[2]
    assert len(questions) == 4
    texts = []
    for seen in questions:
        texts.append(seen.body.pop("messages")[0]["content"])
        assert seen.body == {
            "model": MODEL,
            "max_completion_tokens": 7,
            "temperature": 0.0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        assert "authorization" not in seen.headers
    assert len(set(texts)) == 4 and all(len(text.split()) == 12 for text in texts)


def test_options_reach_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "from-the-environment")
    file = tmp_path / "out.jsonl"
    with RunningStub(whole(0.01, "yes", usage(9, 2)), tokens_per_word=3) as stub:
        flags = ["--dataset-name", "text", "--num-prompts", "3", "--num-warmups", "2", "--input-len", "30", "--no-stream"]
        flags += ["--extra-body", '{"temperature": 0.5, "chat_template_kwargs": {"enable_thinking": false}}', "--ignore-eos"]
        flags += ["--header", "x-team=vision", "--model", "other"]
        assert bench(stub.url, *flags, "--output", str(file)) == 0
        assert bench(f"{stub.url}/v1/", *flags, "--output", str(file), "--api-key", "given", "--label", "second") == 0
        first, second = stub.questions[0], stub.questions[-1]
    assert len(stub.questions) == 10
    assert first.headers["authorization"] == "Bearer from-the-environment" and first.headers["x-team"] == "vision"
    assert second.headers["authorization"] == "Bearer given"
    assert first.body["temperature"] == 0.5 and first.body["chat_template_kwargs"] == {"enable_thinking": False}
    assert first.body["ignore_eos"] is True and first.body["model"] == "other"
    assert first.body["stream"] is False and "stream_options" not in first.body
    assert len(first.body["messages"][0]["content"].split()) == 10  # 30 tokens, by the server's tokenizer
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [line["label"] for line in lines] == [None, "second"]
    assert lines[0]["mean_ttft_ms"] is None and lines[0]["mean_e2el_ms"] >= 10
    assert "given" not in file.read_text() and "from-the-environment" not in file.read_text()


# Red if a flag of sglang.bench_serving is unknown, or means something else than ours.
def test_flags_of_sglang(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "out.jsonl"
    with RunningStub(stream([0.0], usage(9, 1))) as stub:
        flags = [
            "--backend",
            "sglang-oai-chat",
            "--dataset-name",
            "image",
            "--image-content",
            "blank",
            "--image-format",
            "jpeg",
        ]
        flags += ["--image-resolution", "8x8", "--random-input-len", "8", "--random-output-len", "6", "--warmup-requests", "2"]
        flags += ["--random-range-ratio", "1.0", "--apply-chat-template", "--num-prompts", "3", "--output-file", str(file)]
        flags += ["--ignore-eos", "--disable-ignore-eos", "--disable-tqdm", "--extra-request-body", '{"top_k": 5}']
        assert bench(stub.url, *flags, "--tokenizer", str(EMBEDDED)) == 0
    assert len(stub.questions) == 5 and stub.questions[0].body["max_completion_tokens"] == 6
    assert len(stub.questions[0].body["messages"][0]["content"][1]["text"].split()) == 8
    assert stub.questions[0].body["top_k"] == 5 and "ignore_eos" not in stub.questions[0].body
    shown = printed(capsys.readouterr().out)
    assert shown["Backend"] == kept(file)["backend"] == "sglang-oai-chat" and shown["Mean ITL (ms)"] == "0.00"
    again = 3 * len(Tokenizer.from_folder(EMBEDDED).encode("w0 "))
    assert int(shown["Total generated tokens (retokenized)"]) == kept(file)["total_output_tokens_retokenized"] == again


# Red if questions of MMMU are asked again to fill up a run, or nobody is told that they were fewer.
def test_mmmu_stops_at_its_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = io.BytesIO()
    Image.new("RGB", (6, 5), "red").save(picture, "PNG")
    row = {"options": "['one', 'two']", "answer": "A", "question_type": "multiple-choice"}
    row["image_1"] = "data:image/png;base64," + pybase64.b64encode(picture.getvalue()).decode()
    rows = [{**row, "id": f"validation_Math_{number}", "question": f"Number {number}? <image 1>"} for number in (1, 2, 3)]
    (tmp_path / "validation.jsonl").write_text("\n".join(map(json.dumps, rows)))
    file = tmp_path / "out.jsonl"
    with RunningStub(stream([0.0], usage(9, 1))) as stub:
        flags = ["--dataset-name", "mmmu", "--dataset-path", str(tmp_path), "--num-prompts", "7", "--num-warmups", "0"]
        assert bench(stub.url, *flags, "--output", str(file)) == 0
    assert len(stub.questions) == 3 and kept(file)["num_prompts"] == 3
    assert "The dataset has 3 questions: 3 requests are sent, not 7." in capsys.readouterr().err


# Red if warm-up requests show what is measured later: a cache would know it.
def test_warming_up_shows_other_texts() -> None:
    with RunningStub(stream([0.0], usage(9, 1))) as stub:
        assert bench(stub.url, "--dataset-name", "text", "--num-prompts", "2", "--num-warmups", "3") == 0
    assert len({seen.body["messages"][0]["content"] for seen in stub.questions}) == 5


def test_the_same_seed_sends_the_same() -> None:
    bodies = []
    for _ in range(2):
        with RunningStub(stream([0.0], usage(9, 1))) as stub:
            flags = ["--image-resolution", "64x96", "--image-count", "2", "--num-warmups", "0", "--num-prompts", "2"]
            assert bench(stub.url, *flags, "--max-concurrency", "1") == 0
        bodies.append([seen.body for seen in stub.questions])
    assert bodies[0] == bodies[1]
    urls = [part["image_url"]["url"] for body in bodies[0] for part in body["messages"][0]["content"][:2]]
    assert len(set(urls)) == 4 and all(url.startswith("data:image/jpeg;base64,") for url in urls)


@pytest.mark.parametrize(("most", "wanted"), [("3", 3), (None, 12)])
def test_concurrency_is_kept_to(most: str | None, wanted: int) -> None:
    with RunningStub(stream([0.5], usage(9, 1))) as stub:
        flags = ["--max-concurrency", most] if most else []
        assert bench(stub.url, "--dataset-name", "text", "--num-prompts", "12", "--num-warmups", "0", *flags) == 0
    assert stub.most_at_once == wanted if most else stub.most_at_once > 3


# Red if a failure of one kind takes others with it, is counted twice, or ends the run.
def test_every_kind_of_failure_is_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = stream([0.0], usage(9, 1))
    scripts = (
        good,
        refusal(500, "Out of order."),
        Script([(0.0, None)]),
        Script([(0.0, chunk({"content": "a"})), (0.0, None)]),
        Script([(0.0, chunk({"content": "a"})), (0.0, event({"error": {"message": "The engine died."}}))]),
        Script([(0.0, chunk({"content": "a"}))]),
        Script([(0.0, chunk({"content": "a"})), (30.0, chunk({"content": "b"}, "stop"))]),
        good,
    )
    file = tmp_path / "out.jsonl"
    with RunningStub(*scripts) as stub:
        flags = ["--dataset-name", "text", "--num-prompts", "8", "--max-concurrency", "1", "--num-warmups", "0"]
        assert bench(stub.url, *flags, "--timeout", "2", "--output", str(file)) == 0
    record = kept(file)
    assert record["completed"] == 2 and record["failed"] == 6
    assert {one["kind"]: one["count"] for one in record["failures"]} == {
        "HTTP 500": 1,
        "connection lost": 2,
        "error in the stream": 1,
        "broken stream": 1,
        "timeout": 1,
    }
    assert "Out of order." in capsys.readouterr().out


def test_a_server_that_refuses_everything_is_said_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    with RunningStub(refusal(400, "Field 'max_completion_tokens' is unknown.")) as stub:
        assert bench(stub.url, "--dataset-name", "text") == 1
    assert len(stub.questions) == 1
    assert "HTTP 400: Field 'max_completion_tokens' is unknown." in capsys.readouterr().err


def test_no_server(capsys: pytest.CaptureFixture[str]) -> None:
    with RunningStub(stream([0.0], None)) as stub:
        url = stub.url
    assert bench(url) == 1
    assert f"The server at {url} cannot be reached: No connection" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--request-rate", "0"], "The request rate is 0, but must be more than 0"),
        (["--random-range-ratio", "1.5"], "The range ratio is 1.5, but must be from 0 to 1"),
        (["--tokenizer", "/no/such"], "There is no folder /no/such"),
        (["--num-prompts", "0"], "The number of prompts is 0, but must be at least 1"),
        (["--max-concurrency", "-1"], "The maximum concurrency is -1, but must be at least 1"),
        (["--image-resolution", "900p"], "The resolution '900p' is unknown"),
        (["--extra-body", "{"], "--extra-body '{' is not JSON"),
        (["--extra-body", "[]"], "must be a JSON object"),
        (["--dataset-name", "custom"], "needs --dataset-path"),
        (["--header", "x"], "The header 'x' must have the form NAME=VALUE"),
        (["--base-url", "ftp://host"], "must have the form http://host:port"),
        (["--seed", "-1"], "The seed is -1"),
        (["--image-quality", "0"], "The image quality is 0"),
        (["--timeout", "0"], "The timeout is 0 s"),
        (["--dataset-name", "video", "--video-resolution", "15x20"], "must have even sides"),
        (["--video-repeat", "1.5"], "The video's share of repeated frames is 1.5, but must be from 0 to 1"),
        (["--image-resolution", "90-40"], "the range '90-40' ends before it begins"),
        (["--image-count", "-1"], "The image count is -1, but must be at least 0"),
        (
            ["--dataset-name", "mmmu", "--output-len", "3-9"],
            "The output length is 3-9, but the dataset 'mmmu' takes one number",
        ),
    ],
)
def test_mistakes_are_one_sentence(flags: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench("http://127.0.0.1:9", *flags) == 1
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert said in error and error.startswith("sightline: ")


def test_a_range_that_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        bench("http://127.0.0.1:9", "--output-len", "9-3")
    assert ended.value.code == 2
    assert "argument --output-len: the range '9-3' ends before it begins." in capsys.readouterr().err


# Red if nothing is seen of a run before its first answer is whole, or bars fill the logs of programs.
def test_the_bar_shows_ttft_while_answers_come() -> None:
    with RunningStub(stream([0.05, 1.2], usage(9, 2))) as stub:
        command = [sys.executable, "-m", "sightline.cli.main", "bench", "serve", "--base-url", stub.url]
        command += ["--dataset-name", "text", "--num-prompts", "2", "--num-warmups", "0", "--seed", "1"]
        code, text = on_a_terminal(command)
        quiet = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert code == quiet.returncode == 0
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text)
    assert re.search(r"Measuring \S+ +0/2 \S+ TTFT median", plain) and "2/2" in plain
    assert "Measuring" not in quiet.stderr


def on_a_terminal(command: list[str]) -> tuple[int, str]:
    """Runs a command whose errors go to a terminal; its exit code, and what the terminal got."""
    master, slave = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120"}
    program = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=slave, env=environment)
    os.close(slave)
    read = b""
    with contextlib.suppress(OSError):  # Linux's way to say that the last writer has gone
        while piece := os.read(master, 4096):
            read += piece
    os.close(master)
    return program.wait(120), read.decode()
