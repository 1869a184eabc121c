"""`benchmarks.targets` and the summaries of serve, multiturn and probe, against a real server with the embedded model."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from bench.stub import RunningStub, refusal, stream, usage
from benchmarks.__main__ import main as benchmark
from benchmarks.measure.target_jobs import JOBS, NoFigureError, figures_of, keys_of, named, shares_of, value_of
from benchmarks.measure.target_plot import draw_targets, share
from benchmarks.measure.target_table import TARGETS, TargetFigure, as_fields, figure_table
from sightline.bench.load.server_metrics import read_metrics
from sightline.bench.summary import add_to_summary, commit, values_of
from sightline.cli.kept_figures import command
from sightline.cli.main import main, make_parser

from server.running import RunningServer, running  # isort: skip


_VIDEO = [key for job in ("video_repeat.90", "video_repeat.0") for key in keys_of(job)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with running(tmp_path_factory.mktemp("server")) as made:
        yield made


def summary_after(file: Path, *words: str) -> dict[str, Any]:
    assert main(["bench", *words, "--summary", str(file)]) == 0
    return dict(json.loads(file.read_text()))


# Red if a figure of the table is taken by no command, or a command cannot be read.
def test_every_job_is_a_command_and_every_key_a_target() -> None:
    known = {target.key for target in TARGETS}
    for key, job in JOBS.items():
        assert set(keys_of(key)) <= known or set(shares_of(dict.fromkeys(_VIDEO, 1.0))) <= known
        parsed = make_parser().parse(["bench", *job.split()])
        assert parsed.image_quality == 90 and parsed.image_content == ("screen" if key.startswith("screen") else "photo")
    mixed = make_parser().parse(["bench", *JOBS["mixed_12rps"].split()])
    assert mixed.request_rate == 12 and mixed.num_prompts >= 240
    assert [str(mixed.image_count), mixed.image_resolution, str(mixed.output_len)] == ["0-3", "300-1600", "32-192"]
    screens = make_parser().parse(["bench", *JOBS["screen_ttft_ms"].split()])
    assert screens.rounds == 12 and screens.image_format == "png" and screens.output_len <= 32
    assert len({target.key for target in TARGETS}) == len(TARGETS)


def test_met_means_what_it_says() -> None:
    less, more = TargetFigure("a_ms", "", 10.0), TargetFigure("b_rps", "", 65.0, at_least=True)
    assert less.met(10.0) and not less.met(10.1) and more.met(65.0) and not more.met(64.9)
    shown = figure_table({"serve_rps.560": 70.0, "start_s": 30.0}, ["serve_rps.560", "start_s", "ttft_ms.560"]).splitlines()
    assert len(shown) == 4
    by_key = {line.split()[0]: line for line in shown[1:]}
    assert by_key["serve_rps.560"].endswith(" met") and not by_key["serve_rps.560"].endswith("not met")
    assert by_key["start_s"].endswith("not met") and by_key["ttft_ms.560"].endswith("-")
    assert [(field["key"], field["met"]) for field in as_fields({"start_s": 30.0})] == [("start_s", False)]


# Red if a figure that is met stands on the wrong side of the line.
def test_shares_of_targets() -> None:
    for target in TARGETS:
        for value in (0.5 * target.reach, target.reach, 2 * target.reach):
            assert (share(target, value) <= 1) == target.met(value)


def test_targets_are_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Red when no picture comes of a summary, whole or in part, or when an empty one is no clear error."""
    summary, picture = tmp_path / "summary.json", tmp_path / "new" / "targets.png"
    add_to_summary(summary, {"start_s": 18.0, "decode_ms.32": 6.1, "serve_rps.560": 75.0, "something.else": 1.0}, "c", "a GPU")
    assert benchmark(["targets", "--list", "--summary", str(summary), "--plot", str(picture)]) == 0
    with Image.open(picture) as small:
        some = small.size
    draw_targets({target.key: target.reach for target in TARGETS}, "GPU", picture)
    with Image.open(picture) as large:
        assert large.width == some[0] and large.height > some[1] > 100
    capsys.readouterr()
    assert benchmark(["targets", "--list", "--summary", str(tmp_path / "none.json"), "--plot", str(picture)]) != 0
    assert "There is no figure to draw" in capsys.readouterr().err


# Red if a key of the summary gets another figure than the record has, or where it came from is lost.
def test_serve_keeps_the_figure_that_the_key_names(server: RunningServer, tmp_path: Path) -> None:
    file, output = tmp_path / "summary.json", tmp_path / "o.jsonl"
    file.write_text('{"other": {"value": 1}}')
    flags = ["serve", "--port", str(server.port), "--image-resolution", "64x64", "--num-prompts", "3", "--max-concurrency", "1"]
    flags += ["--output-len", "2", "--ignore-eos", "--no-progress", "--output", str(output), "--json", str(tmp_path / "o.json")]
    known = summary_after(file, *flags, "--summary-key", "ttft_ms.64")
    known = summary_after(file, *flags, "--summary-key", "serve_rps.64", "--again")
    records = [json.loads(line) for line in output.read_text().splitlines()]
    assert json.loads((tmp_path / "o.json").read_text()) == records[1]
    assert known["ttft_ms.64"]["value"] == pytest.approx(records[0]["median_ttft_ms"], abs=1e-3)
    assert known["serve_rps.64"]["value"] == pytest.approx(records[1]["request_throughput"], abs=1e-3)
    assert known["ttft_ms.64"]["device"] == "cpu" and known["other"] == {"value": 1}
    assert records[0]["total_cached_tokens"] == 0
    assert records[1]["total_cached_tokens"] > 0.5 * records[1]["total_input_tokens"]  # it had seen each one before


def test_multiturn_and_probe_keep_their_figures(server: RunningServer, tmp_path: Path) -> None:
    file = tmp_path / "summary.json"
    flags = ["--port", str(server.port), "--resolutions", "64x64", "64x96"]
    known = summary_after(file, "multiturn", *flags, "--rounds", "2", "--output-len", "2", "--no-progress")
    assert set(known) == {"round1_ttft_ms.64x64", "round1_ttft_ms.64x96"} and known["round1_ttft_ms.64x64"]["value"] > 0
    known = summary_after(file, "probe", *flags, "--counts", "2", "3", "--output-len", "2")
    assert known["probe_images.64x64"]["value"] == known["probe_images.64x96"]["value"] == 3


# Red if the table, the summary and the JSON disagree, or a figure that cannot be taken is passed over.
def test_targets(server: RunningServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    summary, kept = tmp_path / "summary.json", tmp_path / "targets.json"
    flags = ["targets", "--port", str(server.port), "--summary", str(summary), "--json", str(kept)]
    assert benchmark([*flags, "--only", "ttft_ms.560,ttft_ms.64x1080p", "--seed", "4"]) == 1
    out = capsys.readouterr().out
    figures = json.loads(kept.read_text())
    value = values_of(summary)["ttft_ms.560"]
    assert figures["figures"][0]["value"] == pytest.approx(value, abs=1e-3)
    assert figures["figures"][0]["sglang"] == 73.0 and figures["records"]["ttft_ms.560"]["completed"] == 9
    assert json.loads(summary.read_text())["ttft_ms.560"]["command"] == f"sightline bench {JOBS['ttft_ms.560']}"
    assert "ttft_ms.64x1080p" not in values_of(summary)
    assert "ttft_ms.64x1080p was not taken" in out and "more than the limit of" in figures["failures"]["ttft_ms.64x1080p"]
    assert sum(line.startswith("ttft_ms.560") for line in out.splitlines()) == 2
    assert benchmark([*flags, "--list"]) == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("ttft_ms.560")]
    numbers = [float(word) for word in rows[-1].replace(",", "").split() if word.replace(".", "", 1).isdigit()]
    assert any(number == pytest.approx(value, rel=0.01) for number in numbers), (rows, value)


# Red if a job's figures are of other rounds or fields than their keys say, or a share is taken of the wrong job.
def test_jobs_with_several_figures() -> None:
    rounds = [{"ttft_ms": 100.0 + number, "error": None} for number in range(12)]
    assert figures_of("screen_ttft_ms", {"kind": "multiturn", "rounds": rounds}) == {
        "screen_ttft_ms.0": 100.0,
        "screen_ttft_ms.11": 111.0,
    }
    rounds[5]["error"] = "HTTP 500: Broken."
    with pytest.raises(NoFigureError, match="Broken"):
        figures_of("screen_ttft_ms", {"kind": "multiturn", "rounds": rounds})
    mixed = {"kind": "serve", "failed": 0, "p99_itl_ms": 1.0, "median_ttft_ms": 2.0, "p99_ttft_ms": 3.0, "median_itl_ms": 4.0}
    assert list(figures_of("mixed_12rps", mixed).values()) == [1.0, 2.0, 3.0]
    clip = {"kind": "serve", "failed": 0, "median_ttft_ms": 40.0, "median_tower_ms": 10.0}
    some = figures_of("video_repeat.90", clip)
    assert shares_of(some) == {}
    all_of_it = {**some, **figures_of("video_repeat.0", {**clip, "median_ttft_ms": 80.0, "median_tower_ms": 100.0})}
    assert shares_of(all_of_it) == {"video_repeat.tower_share": 0.1, "video_repeat.ttft_share": 0.5}
    with pytest.raises(NoFigureError, match="does not tell median_tower_ms"):
        figures_of("video_repeat.90", {**clip, "median_tower_ms": None})


# Red if one of the loads of PNG screens, mixed sizes or repeated frames fails on a real server, or its figures are not kept.
@pytest.mark.slow
def test_jobs_of_realistic_loads(server: RunningServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = {
        "--rounds 12": "--rounds 12 --input-len 4",
        "--conversations 3": "--conversations 1",
        "--resolutions 1080p": "--resolutions 64x64",
        "--num-prompts 240": "--num-prompts 12",
        "--num-warmups 12": "--num-warmups 1",
        "300-1600": "40-160",
        "32-192": "2-5",
        "--video-resolution 1080p --video-frames 120": "--video-resolution 64x64 --video-frames 8",
        "--num-prompts 3": "--num-prompts 1",
        "--image-resolution 1080p": "--image-resolution 64x64",
        "--output-len 16": "--output-len 2",
    }
    for job in ("screen_ttft_ms", "mixed_12rps", "same_image_rps.96", "video_repeat.90", "video_repeat.0"):
        command = JOBS[job]
        for large, less in small.items():
            command = command.replace(large, less)
        monkeypatch.setitem(JOBS, job, command)
    summary, kept = tmp_path / "summary.json", tmp_path / "targets.json"
    wanted = ("screen_ttft_ms", "mixed_12rps", "same_image_rps.96", "video_repeat.90", "video_repeat.0")
    flags = ["targets", "--port", str(server.port), "--summary", str(summary), "--json", str(kept), "--only", ",".join(wanted)]
    assert benchmark([*flags, "--seed", "4", "--name", "tiny"]) == 0
    known = values_of(summary)
    keys = [*(key for job in wanted for key in keys_of(job)), "video_repeat.tower_share", "video_repeat.ttft_share"]
    assert set(known) == {named(key, "tiny") for key in keys} and all(value > 0 for value in known.values())
    records = json.loads(kept.read_text())["records"]
    assert [found["images"] for found in records["screen_ttft_ms"]["rounds"]] == list(range(1, 13))
    assert records["mixed_12rps"]["image_resolution"] == "40-160" and records["mixed_12rps"]["output_len"] == "2-5"
    assert len(set(records["mixed_12rps"]["output_lens"])) > 1
    assert records["video_repeat.90"]["video_repeat"] == 0.9 and records["video_repeat.90"]["median_tower_ms"] > 0


def test_growth_of_memory_stands_beside_the_images() -> None:
    probes = [{"images": count, "error": None, "gpu_memory_mb": memory} for count, memory in ((8, 900.0), (64, 912.0))]
    record = {"kind": "probe", "largest": {"2k": 64}, "probes": probes}
    assert figures_of("probe_images.2k", record) == {"probe_images.2k": 64, "probe_memory_growth_mb.2k": 12.0}


def test_a_failed_request_is_no_figure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with RunningStub(stream([0.0], usage(10, 1)), refusal(500, "Broken.")) as stub:
        words = ["bench", "serve", "--base-url", stub.url, "--dataset-name", "text", "--num-prompts", "2", "--num-warmups", "0"]
        words += [
            "--max-concurrency",
            "1",
            "--no-progress",
            "--summary",
            str(tmp_path / "s.json"),
            "--summary-key",
            "ttft_ms.x",
        ]
        assert main(words) == 1
    assert not (tmp_path / "s.json").exists()
    record = {"kind": "serve", "failed": 1, "failures": [{"kind": "HTTP 500", "example": "Broken."}]}
    with pytest.raises(NoFigureError, match="Broken"):
        value_of("ttft_ms.560", record)


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["serve", "--summary", "s.json"], "--summary and --summary-key belong together"),
        (["serve", "--summary", "s.json", "--summary-key", "speed.560"], "--summary-key is 'speed.560', but must begin with"),
        (["targets", "--only", "ttft_ms.561"], "--only names 'ttft_ms.561'"),
    ],
)
def test_mistakes(flags: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert (benchmark(flags) if flags[0] == "targets" else main(["bench", *flags])) == 1
    assert sentence in capsys.readouterr().err


# Red if a figure names a folder, a host or a key of the machine it was taken on.
def test_commands_name_nothing_private(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    words = ["bench", "serve", "--api-key", "secret", "--base-url=http://inside:1", "--header", "x=secret", "y=secret"]
    words += ["--output", str(tmp_path / "o.jsonl"), f"--summary={Path.cwd() / 'results' / 's.json'}", "--seed", "3"]
    monkeypatch.setattr(sys, "argv", ["/usr/bin/sightline", *words])
    assert command() == (
        "sightline bench serve --api-key ... --base-url=... --header ... ... --output o.jsonl --summary=results/s.json --seed 3"
    )


def test_the_commit_may_be_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SIGHTLINE_COMMIT", "abc1234")
    assert commit() == "abc1234"
    add_to_summary(tmp_path / "s.json", {"a": 1.0}, "sightline", "cpu")
    assert json.loads((tmp_path / "s.json").read_text())["a"]["commit"] == "abc1234"


def test_metrics_are_read() -> None:
    text = '# HELP a b\nsightline:cache_bytes{cache="prefix"} 12.0\nup 1\nsightline:info{device="cuda:0",model="a b"} 1.0\n'
    wanted = {"sightline:cache_bytes{cache=prefix}": 12.0, "up": 1.0, "sightline:info{device=cuda:0,model=a b}": 1.0}
    assert read_metrics(text) == wanted
