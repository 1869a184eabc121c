"""The client benchmarks against `sightline serve` with the embedded model, as a user runs them."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sightline.cli.main import main

from server.running import MODEL, RunningServer, running  # isort: skip


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with running(tmp_path_factory.mktemp("server")) as made:
        yield made


def bench(what: str, server: RunningServer, file: Path, *flags: str) -> dict[str, Any]:
    """Runs the command and returns what it kept."""
    assert main(["bench", what, "--port", str(server.port), "--output", str(file), "--label", "embedded", *flags]) == 0
    return dict(json.loads(file.read_text().splitlines()[-1]))


# Red if the server's usage is not understood: text and vision apart, cached tokens, tokens per answer.
def test_serve(server: RunningServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "serve.jsonl"
    flags = ["--num-prompts", "6", "--max-concurrency", "3", "--image-resolution", "96x128", "--image-count", "2"]
    flags += ["--output-len", "4", "--ignore-eos", "--input-len", "24", "--seed", "11"]
    record = bench("serve", server, file, *flags)
    assert record["model_id"] == MODEL and record["completed"] == 6 and record["failed"] == 0
    assert record["total_output_tokens"] == 24 and record["output_lens"] == [4] * 6
    assert all(1 <= len(gaps) <= 4 for gaps in record["itls"])  # tokens that are half a character come with the next one
    assert record["total_input_vision_tokens"] > 6 * 2 and record["total_input_text_tokens"] > 6 * 20
    assert record["total_input_tokens"] == record["total_input_vision_tokens"] + record["total_input_text_tokens"]
    assert record["max_concurrent_requests"] <= 3
    assert record["total_cached_tokens"] == 0
    assert 0 < record["device_busy_share"] <= 1
    again = bench("serve", server, file, *flags)  # the same seed: the server has seen it all
    assert again["total_cached_tokens"] > 0.5 * again["total_input_tokens"]
    out = capsys.readouterr().out
    assert f"Total input vision tokens:               {record['total_input_vision_tokens']}" in out
    assert f"Device busy with steps (%):              {100 * record['device_busy_share']:.2f}" in out


@pytest.mark.parametrize("flags", [["--dataset-name", "text"], ["--dataset-name", "video", "--video-frames", "4"]])
def test_other_datasets(server: RunningServer, tmp_path: Path, flags: list[str]) -> None:
    flags = [*flags, "--video-resolution", "64x64", "--num-prompts", "3", "--output-len", "2", "--request-rate", "50"]
    record = bench("serve", server, tmp_path / "o.jsonl", *flags)
    assert record["completed"] == 3
    assert (record["total_input_vision_tokens"] > 0) == ("video" in flags)


def test_whole_answers(server: RunningServer, tmp_path: Path) -> None:
    flags = ["--no-stream", "--image-resolution", "64x64", "--image-format", "webp", "--num-prompts", "2", "--output-len", "2"]
    record = bench("serve", server, tmp_path / "o.jsonl", *flags)
    assert record["completed"] == 2 and record["mean_ttft_ms"] is None and record["mean_e2el_ms"] > 0


# Red if rounds are encoded again, or the timings that the server tells are not read.
def test_multiturn(server: RunningServer, tmp_path: Path) -> None:
    flags = ["--rounds", "3", "--resolutions", "64x96", "96x96", "--output-len", "3"]
    record = bench("multiturn", server, tmp_path / "o.jsonl", *flags)
    assert [found["encoded_items"] for found in record["rounds"]] == [1] * 6
    assert all(found["tower_ms"] > 0 and found["ttft_ms"] > 0 for found in record["rounds"])
    cached = [found["cached_tokens"] for found in record["rounds"]]
    assert cached[0] < cached[1] < cached[2]


def test_probe(server: RunningServer, tmp_path: Path) -> None:
    record = bench("probe", server, tmp_path / "o.jsonl", "--resolutions", "64x64", "--max-images", "3")
    assert record["largest"] == {"64x64": 3}
    assert [probe["images"] for probe in record["probes"]] == [1, 2, 3]
    assert all(probe["ttft_ms"] > 0 and probe["tower_ms"] > 0 for probe in record["probes"])


# Red if the engine encodes a picture of a growing request twice.
def test_a_growing_probe(server: RunningServer, tmp_path: Path) -> None:
    record = bench("probe", server, tmp_path / "o.jsonl", "--resolutions", "160x160", "--max-images", "4", "--growing")
    assert [probe["encoded_items"] for probe in record["probes"]] == [1, 1, 1, 1]
    cached = [probe["cached_tokens"] for probe in record["probes"]]
    assert cached[0] < cached[1] < cached[2] < cached[3]


def test_a_limit_is_told_in_the_words_of_the_server(
    server: RunningServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["bench", "probe", "--port", str(server.port), "--resolutions", "64x64", "--counts", "1", "--input-len", "6000"]
    assert main([*flags, "--output", str(tmp_path / "o.jsonl")]) == 1
    record = json.loads((tmp_path / "o.jsonl").read_text())
    assert record["largest"] == {"64x64": 0} and "The prompt has" in record["probes"][0]["error"]
    assert capsys.readouterr().out.splitlines()[-1].split()[:2] == ["64x64", "0"]


def test_compare_what_was_kept(server: RunningServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "o.jsonl"
    bench("multiturn", server, file, "--rounds", "2", "--resolutions", "64x64", "--output-len", "2")
    bench("serve", server, file, "--num-prompts", "2", "--image-resolution", "64x64", "--output-len", "2")
    assert main(["bench", "compare", str(file), "--plots", str(tmp_path / "plots")]) == 0
    assert "TTFT (ms) by round, 64x64" in capsys.readouterr().out
    assert len(list((tmp_path / "plots").glob("*.png"))) == 3
