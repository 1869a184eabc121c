"""`python -m benchmarks.start`, `lookahead` and `soak`: real servers and engines with the embedded model."""

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from bench.stub import RunningStub, stream, usage
from benchmarks.__main__ import main as benchmark
from benchmarks.measure.start import compiler_caches
from sightline.bench.load.soak import KINDS
from sightline.bench.load.soak_report import Holding, SoakConfig, Tally, complaints, growth
from sightline.bench.server_process import ServerError, serving
from sightline.cli.main import main

from server.running import ADMIN, RunningServer, process_exists, running  # isort: skip

START = ["start", "--serve", "--device cpu", "--image-resolution", "64x64"]
LOOKAHEAD = ["lookahead", "--device", "cpu", "--decodes", "2", "--arrivals", "3", "--rate", "20", "--context", "8"]


# Red if a start counts something else than a process that was not there before, or the summary has the first one.
def test_start(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept, summary = tmp_path / "start.json", tmp_path / "summary.json"
    assert benchmark([*START, "--json", str(kept), "--summary", str(summary)]) == 0
    starts = json.loads(kept.read_text())["starts"]
    assert len(starts) == 2
    for start in starts:
        assert 0 < start["listening_s"] <= start["ready_s"] <= start["answer_s"] and start["device"] == "cpu"
    assert json.loads(summary.read_text())["start_s"]["value"] == pytest.approx(starts[1]["answer_s"], abs=1e-3)
    assert "start 2" in capsys.readouterr().out


@pytest.mark.slow
def test_a_first_start_has_empty_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Red if caches of compilers are those that were there, are others in the second start, or stay behind; or if the figures
    are of the wrong start."""
    monkeypatch.setenv("TRITON_CACHE_DIR", "/nowhere")
    with compiler_caches(True) as first:
        folders = {first[name] for name in ("XDG_CACHE_HOME", "TRITON_CACHE_DIR", "CUDA_CACHE_PATH")}
        assert "/nowhere" not in folders and len(folders) == 3 and "HF_HOME" in first
        assert all(Path(folder).parent.is_dir() for folder in folders)
    assert not any(Path(folder).parent.exists() for folder in folders)
    kept, summary = tmp_path / "start.json", tmp_path / "summary.json"
    assert benchmark([*START, "--fresh-caches", "--json", str(kept), "--summary", str(summary)]) == 0
    starts, known = json.loads(kept.read_text())["starts"], json.loads(summary.read_text())
    assert [known[key]["value"] for key in ("start_first_s", "start_s")] == [
        pytest.approx(start["answer_s"], abs=1e-3) for start in starts
    ]


def test_a_server_that_does_not_start(capsys: pytest.CaptureFixture[str]) -> None:
    assert benchmark(["start", "--serve", "/no/such/checkpoint", "--starts", "1"]) == 1
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
    assert benchmark([*LOOKAHEAD, *flags, "--a", "--lookahead-patches 0 --max-num-batched-tokens 64"]) == 0
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
    run = benchmark if flags[0] in ("lookahead", "start") else lambda words: main(["bench", *words])
    assert run(flags) == 1
    assert sentence in capsys.readouterr().err


def test_a_setting_that_does_not_exist(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        benchmark([*LOOKAHEAD, "--a", "--lookahaed-patches 0"])
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


# Red if hostile files are no part of the load, if nothing is killed, if an interruption is called an error, if the server is
# not started again, or if what a kill leaves behind is not said.
@pytest.mark.slow
def test_soak_with_kills(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hostile, kept = tmp_path / "hostile", tmp_path / "soak.json"
    hostile.mkdir()
    (hostile / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(100))
    (hostile / "no-picture.bin").write_bytes(b"x" * 1000)
    Image.new("L", (7000, 7000)).save(hostile / "huge.jpg")  # for a helper
    flags = ["--minutes", "0.35", "--warm-up", "1", "--concurrency", "4", "--largest-side", "64", "--long-answer", "16"]
    flags += ["--input-len", "8", "--own-server", "--kv-cache-gb 0.1 --device cpu", "--kill-every", "12", "--seed", "3"]
    assert main(["bench", "soak", *flags, "--hostile", str(hostile), "--json", str(kept)]) == 0, capsys.readouterr().out
    report = json.loads(kept.read_text())
    assert report["complaints"] == [] and report["errors"] == {} and report["refused"] > 0 and report["asked"]["hostile"] > 0
    said = capsys.readouterr().out
    assert "API killed" in said and "engine killed" in said and report["killed"]["helper"] > 0 and report["commit"]
    assert str(tmp_path) not in kept.read_text().replace(json.dumps(str(kept)), "").split('"settings"')[1]


def test_kills_are_for_a_server_of_ones_own(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "soak", "--kill-every", "5"]) == 1
    assert "--kill-every needs --own-server" in capsys.readouterr().err


def test_memory_that_is_not_flat() -> None:
    """Red when a slow leak after the first minutes is not said, or a jump before that is."""
    config = SoakConfig(flat_slack_mb=50, warm_up_s=0.0)
    looks = [Holding(60.0 * minute, None, 100.0 + 10 * minute, 300.0 if minute > 3 else 900.0, {}) for minute in range(30)]
    (said,) = growth(config, looks)
    assert said.startswith("memory of the API process is not flat: ")
    assert growth(config, [replace(look, api_mb=100.0) for look in looks]) == []
    assert growth(config, looks[:8]) == [], "too short to tell"


def test_young_processes_are_compared_with_young_ones() -> None:
    """Red when an engine that happens to be older at the end counts as a leak, or one larger at the same age does not."""
    config = SoakConfig(flat_slack_mb=50, warm_up_s=0.0, kills=True)
    seconds = np.arange(0.0, 1800.0, 5.0)
    ages = np.where(seconds < 900, seconds % 20, seconds % 60)  # killed less often at the end
    looks = [
        Holding(at, None, 100.0, 200.0 + 10 * age, {}, api_age_s=age, engine_age_s=age)
        for at, age in zip(seconds.tolist(), ages.tolist(), strict=True)
    ]
    assert growth(config, looks) == []
    leaking = [replace(look, engine_mb=look.engine_mb + 0.1 * look.seconds) for look in looks if look.engine_mb is not None]
    assert growth(config, leaking)[0].startswith("memory of the engine's process up to 15 s after its start is not flat: ")


def test_soak_needs_metrics(capsys: pytest.CaptureFixture[str]) -> None:
    with RunningStub(stream([0.0], usage(1, 1))) as stub:
        assert main(["bench", "soak", "--base-url", stub.url, "--minutes", "0.01", "--warm-up", "0"]) == 1
    assert "The server has no /metrics" in capsys.readouterr().err


# Red if something that is wrong is not said.
def test_complaints() -> None:
    config = SoakConfig(gpu_slack_mb=100, process_slack_mb=50)
    before = Holding(0.0, 1000.0, 200.0, 300.0, {"sightline:engine_restarts_total": 1.0})
    assert complaints(config, Tally(), before, [], before, []) == []
    worse = replace(before, gpu_mb=1101.0, api_mb=251.0, engine_mb=None, metrics={"sightline:engine_restarts_total": 2.0})
    found = complaints(config, Tally(errors=Counter({"text: HTTP 500: no": 3})), before, [], worse, ["inflight_bytes is 12"])
    assert found == [
        "3 times: text: HTTP 500: no",
        "still held when idle: inflight_bytes is 12",
        "memory of the GPU grew from 1000 to 1101 MB",
        "memory of the API process grew from 200 to 251 MB",
        "the engine was started again 1 times",
    ]
    counters = {"requests_started_total{route=a}": 9.0, "requests_total{route=a,status=200}": 4.0}
    counters |= {"requests_total{route=a,status=499}": 2.0, "requests_total{route=a,status=400}": 1.0}
    odd = replace(before, metrics={f"sightline:{name}": count for name, count in counters.items()})
    sentence = "9 requests were started, but 4 finished, 2 aborted, 1 failed and 0 in progress"
    assert complaints(config, Tally(), before, [], odd, []) == [f"after 0 s {sentence}"]
    # A server that was killed has taken its counters with it.
    assert complaints(config, Tally(), before, [before, replace(odd, seconds=7.0)], before, []) == [f"after 7 s {sentence}"]


@pytest.mark.parametrize(("device", "grown"), [("cpu", 351.0), ("cuda:0", 301.0)])
def test_caches_in_the_engines_process_fill_up(device: str, grown: float) -> None:
    """On a CPU 30 and 20 MB of them may show as memory after the warm-up."""
    metrics = {
        f"sightline:engine_memory_bytes{{part={part}}}": mb * 2.0**20 for part, mb in (("kv_cache", 30), ("embeddings", 20))
    }
    metrics[f"sightline:info{{device={device},dtype=float32}}"] = 1.0
    before = Holding(0.0, None, None, 300.0, metrics)
    config = SoakConfig(process_slack_mb=0)
    assert complaints(config, Tally(), before, [], replace(before, engine_mb=grown - 1), []) == []
    assert complaints(config, Tally(), before, [], replace(before, engine_mb=grown), []) != []


def test_the_figures_of_the_hostile_soak_are_those_that_are_kept() -> None:
    """Red when docs/robustness.md says something else than the soak's report, or when that names a folder of a machine."""
    root = Path(__file__).parents[2]
    text = (root / "benchmarks" / "results" / "soak_hostile_cpu.json").read_text(encoding="utf-8")
    said = (root / "docs" / "robustness.md").read_text(encoding="utf-8").split("## Thirty minutes")[1].split("\n## ")[0]
    report = json.loads(text)
    assert report["complaints"] == [] and report["errors"] == {} and report["settings"]["minutes"] == 30
    killed = report["killed"]
    assert report["settings"]["concurrency"] == 200 and min(killed.values()) >= 27
    assert [count for count in killed.values() if f"{count} times" not in said] == []
    asked = report["asked"]
    figures = (sum(asked.values()), asked["hostile"], report["refused"], report["left"], report["interrupted"])
    assert [figure for figure in figures if f"{figure:,}" not in said] == []
    assert not re.search(r"[\s='\"]/", report["command"]), "a folder of a machine"
    late = [look for look in report["samples"] if look["seconds"] > 320]
    for name in ("api", "engine"):
        looks = [look[f"{name}_mb"] for look in late if f"{name}_mb" in look and 30 <= look[f"{name}_age_s"] < 60]
        third = len(looks) // 3
        first, last = (f"{np.median(part):.0f}" for part in (looks[:third], looks[-third:]))
        assert first in said and last in said, (name, first, last)
