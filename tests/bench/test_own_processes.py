"""`sightline bench start`, `lookahead` and `soak`: real servers and engines with the embedded model."""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from bench.stub import RunningStub, stream, usage
from sightline.bench.load.soak import KINDS, Holding, SoakConfig, Tally, complaints
from sightline.bench.server_process import ServerError, serving
from sightline.cli.main import main

from server.running import ADMIN, RunningServer, process_exists, running  # isort: skip

START = ["bench", "start", "--serve", "--device cpu", "--image-resolution", "64x64"]
LOOKAHEAD = ["bench", "lookahead", "--device", "cpu", "--decodes", "2", "--arrivals", "3", "--rate", "20", "--context", "8"]


# Red if a start counts something else than a process that was not there before, or the summary has the first one.
def test_start(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept, summary = tmp_path / "start.json", tmp_path / "summary.json"
    assert main([*START, "--json", str(kept), "--summary", str(summary)]) == 0
    starts = json.loads(kept.read_text())["starts"]
    assert len(starts) == 2
    for start in starts:
        assert 0 < start["listening_s"] <= start["ready_s"] <= start["answer_s"] and start["device"] == "cpu"
    assert json.loads(summary.read_text())["start_s"]["value"] == pytest.approx(starts[1]["answer_s"], abs=1e-3)
    assert "start 2" in capsys.readouterr().out


def test_a_server_that_does_not_start(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "start", "--serve", "/no/such/checkpoint", "--starts", "1"]) == 1
    said = capsys.readouterr().err
    assert "The server ended with" in said and "/no/such/checkpoint" in said


# Red if a benchmark leaves a server behind when it fails.
def test_a_server_ends_with_its_benchmark() -> None:
    with pytest.raises(ServerError, match="within 0 s"), serving(["--device", "cpu"], patience_s=0.0) as server:
        server.until_ready()
    assert not process_exists(server.process.pid)


# Red if one of the two settings is not what it was given, or tokens and images are confused.
def test_lookahead(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept, summary = tmp_path / "l.json", tmp_path / "s.json"
    flags = ["--image-resolution", "64x64", "--json", str(kept), "--summary", str(summary), "--seed", "2"]
    assert main([*LOOKAHEAD, *flags, "--a", "--lookahead-patches 0 --max-num-batched-tokens 64"]) == 0
    found = json.loads(kept.read_text())
    for side in ("a", "b"):
        assert len(found[side]["ttfts_ms"]) == 3 and found[side]["tokens_beside"] > 0
        assert 0 < found[side]["itl_median_ms"] <= found[side]["itl_p99_ms"] <= found[side]["itl_max_ms"]
        assert found[side]["quiet_itl_median_ms"] > 0 and found[side]["ttft_median_ms"] > 0
    assert json.loads(summary.read_text())["lookahead_b.itl_p99_ms"]["value"] == pytest.approx(
        found["b"]["itl_p99_ms"], abs=1e-3
    )
    assert "a: --lookahead-patches 0 --max-num-batched-tokens 64" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["lookahead", "--decodes", "0"], "--decodes is 0, but must be at least 1."),
        (["lookahead", "--rate", "0"], "The request rate is 0"),
        (["start", "--starts", "0"], "--starts is 0, but must be at least 1."),
        (["soak", "--minutes", "0"], "--minutes is 0.0, but must be above 0."),
    ],
)
def test_mistakes(flags: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *flags]) == 1
    assert sentence in capsys.readouterr().err


def test_a_setting_that_does_not_exist(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([*LOOKAHEAD, "--a", "--lookahaed-patches 0"])
    assert "did you mean --lookahead-patches?" in capsys.readouterr().err


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with running(tmp_path_factory.mktemp("server")) as made:
        yield made


# Red if workers leave out a kind of question, if leaving is counted as an error, or the server is not read when idle.
def test_soak(server: RunningServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept = tmp_path / "soak.json"
    flags = ["--port", str(server.port), "--minutes", "0.2", "--warm-up", "2", "--concurrency", "4", "--largest-side", "128"]
    flags += ["--long-answer", "24", "--input-len", "8", "--admin-api-key", ADMIN, "--seed", "5", "--json", str(kept)]
    assert main(["bench", "soak", *flags]) == 0
    report = json.loads(kept.read_text())
    assert report["complaints"] == [] and report["errors"] == {} and report["output_tokens"] > 0
    assert set(report["asked"]) <= set(KINDS) and len(report["asked"]) >= 2 and sum(report["asked"].values()) >= 4
    assert report["before"]["engine_mb"] > 50 and report["after"]["api_mb"] > 20 and len(report["samples"]) >= 1
    grown = [report[when]["metrics"]["sightline:generation_tokens_total"] for when in ("before", "after")]
    assert grown[1] - grown[0] >= report["output_tokens"]  # of those who left, too
    assert report["after"]["metrics"]["sightline:cache_bytes{cache=prefix}"] == 0
    assert ADMIN not in kept.read_text()
    assert "No error, nothing held" in capsys.readouterr().out
    server.until_idle()


def test_soak_needs_metrics(capsys: pytest.CaptureFixture[str]) -> None:
    with RunningStub(stream([0.0], usage(1, 1))) as stub:
        assert main(["bench", "soak", "--base-url", stub.url, "--minutes", "0.01", "--warm-up", "0"]) == 1
    assert "The server has no /metrics" in capsys.readouterr().err


# Red if something that is wrong is not said.
def test_complaints() -> None:
    config = SoakConfig(gpu_slack_mb=100, process_slack_mb=50)
    before = Holding(0.0, 1000.0, 200.0, 300.0, {"sightline:engine_restarts_total": 1.0})
    assert complaints(config, Tally(), before, before, []) == []
    worse = replace(before, gpu_mb=1101.0, api_mb=251.0, engine_mb=None, metrics={"sightline:engine_restarts_total": 2.0})
    found = complaints(config, Tally(errors=Counter({"text: HTTP 500: no": 3})), before, worse, ["inflight_bytes is 12"])
    assert found == [
        "3 times: text: HTTP 500: no",
        "still held when idle: inflight_bytes is 12",
        "memory of the GPU grew from 1000 to 1101 MB",
        "memory of the API process grew from 200 to 251 MB",
        "the engine was started again 1 times",
    ]


@pytest.mark.parametrize(("device", "grown"), [("cpu", 351.0), ("cuda:0", 301.0)])
def test_caches_in_the_engines_process_fill_up(device: str, grown: float) -> None:
    """On a CPU 30 and 20 MB of them may show as memory after the warm-up."""
    metrics = {
        f"sightline:engine_memory_bytes{{part={part}}}": mb * 2.0**20 for part, mb in (("kv_cache", 30), ("embeddings", 20))
    }
    metrics[f"sightline:info{{device={device},dtype=float32}}"] = 1.0
    before = Holding(0.0, None, None, 300.0, metrics)
    config = SoakConfig(process_slack_mb=0)
    assert complaints(config, Tally(), before, replace(before, engine_mb=grown - 1), []) == []
    assert complaints(config, Tally(), before, replace(before, engine_mb=grown), []) != []
