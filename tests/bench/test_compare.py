"""`sightline bench compare`: tables with ratios, and plots, from results as they are kept."""

import json
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from sightline.bench.load.compare import read_runs, tables
from sightline.cli.main import main
from sightline.errors import ConfigError


def serve(rate: Any = "inf", most: int | None = 32, factor: float = 1.0, **fields: Any) -> dict[str, Any]:
    times = [0.1 * factor * number for number in range(1, 11)]
    record: dict[str, Any] = {
        "kind": "serve",
        "request_rate": rate,
        "max_concurrency": most,
        "completed": 10,
        "failed": 0,
        "request_throughput": 22.6 / factor,
        "output_throughput": 100.0,
        "total_token_throughput": None,
        "ttfts": times,
        "latencies": [2 * time for time in times],
    }
    for metric in ("ttft", "e2el"):
        for place, which in enumerate(("mean", "median", "p99"), 1):
            record[f"{which}_{metric}_ms"] = 1000.0 * place * factor
    return {**record, **fields}


def rounds(factor: float, resolutions: tuple[str, ...] = ("720p", "2k")) -> dict[str, Any]:
    found = [
        {"resolution": name, "round": number, "ttft_ms": factor * 100.0 * (number + 1), "tower_ms": None, "error": None}
        for name in resolutions
        for number in range(3)
    ]
    return {"kind": "multiturn", "rounds": found}


def probes(largest: int) -> dict[str, Any]:
    found = [{"resolution": "2k", "images": count, "ttft_ms": 900.0 * count, "error": None} for count in (1, 2, largest)]
    found.append({"resolution": "2k", "images": largest + 1, "ttft_ms": None, "error": "HTTP 400: Too many."})
    return {"kind": "probe", "probes": found, "largest": {"2k": largest}}


def write(path: Path, *records: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def test_serving_beside_each_other(tmp_path: Path) -> None:
    first = write(tmp_path / "before.jsonl", serve())
    second = write(tmp_path / "after.jsonl", serve(factor=0.5, label="with graphs"))
    (table,) = tables(read_runs([first, second]))
    lines = table.splitlines()
    assert lines[0] == "Serving: all at once, at most 32 at a time"
    assert lines[1].split("  ")[-3:] != [] and lines[1].split() == ["before", "with", "graphs", "/", "before"]
    rows = {line[:31].strip(): line[31:].split() for line in lines[2:]}
    assert rows["Request throughput (req/s)"] == ["22.60", "45.20", "2.00x"]
    assert rows["Mean TTFT (ms)"] == ["1,000.0", "500.0", "0.50x"]
    assert rows["P99 E2E Latency (ms)"] == ["3,000.0", "1,500.0", "0.50x"]
    assert rows["Failed requests"] == ["0", "0", "-"]
    assert "Total token throughput (tok/s)" not in rows  # nobody knows it


# Red if runs under different loads are compared, or an old run of the same load instead of the latest.
def test_loads_are_kept_apart(tmp_path: Path) -> None:
    first = write(tmp_path / "a.jsonl", serve(2.0, None), serve(4.0, None), serve(4.0, None, factor=4.0))
    second = write(tmp_path / "b.jsonl", serve(4.0, None, factor=2.0))
    two, four = tables(read_runs([first, second]))
    assert two.startswith("Serving: 2 requests/s\n") and " b" not in two
    assert four.startswith("Serving: 4 requests/s\n") and "4,000.0  2,000.0  0.50x" in four


def test_rounds_and_images(tmp_path: Path) -> None:
    first = write(tmp_path / "a.jsonl", rounds(1.0), probes(20))
    second = write(tmp_path / "b.jsonl", rounds(0.25, ("720p",)), probes(51))
    found = {table.splitlines()[0]: table.splitlines()[1:] for table in tables(read_runs([first, second]))}
    assert list(found) == [
        "TTFT (ms) by round, 720p",
        "TTFT (ms) by round, 2k",
        "TTFT (ms) by images in one request, 2k",
        "Most images in one request",
    ]
    assert [line.split() for line in found["TTFT (ms) by round, 720p"]] == [
        ["round", "a", "b", "/", "a"],
        ["0", "100.0", "25.00", "0.25x"],
        ["1", "200.0", "50.00", "0.25x"],
        ["2", "300.0", "75.00", "0.25x"],
    ]
    assert found["TTFT (ms) by round, 2k"][1].split() == ["0", "100.0", "-", "-"]
    assert [line.split()[0] for line in found["TTFT (ms) by images in one request, 2k"][1:]] == [
        "1",
        "2",
        "20",
        "21",
        "51",
        "52",
    ]
    assert found["Most images in one request"][1].split() == ["2k", "20", "51", "2.55x"]


# A result of `vllm bench serve --save-result` is one document without a kind.
def test_results_of_vllm(tmp_path: Path) -> None:
    record = {key: value for key, value in serve().items() if key not in ("kind", "latencies")}
    (tmp_path / "vllm.json").write_text(json.dumps(record, indent=2))
    (run,) = read_runs([tmp_path / "vllm.json"])
    assert run.kind == "serve" and run.label == "vllm"


# A line of `sglang.bench_serving --output-file` has an infinite rate that JSON does not know, and its own names.
def test_results_of_sglang(tmp_path: Path) -> None:
    line = '{"backend": "sglang-oai-chat", "request_rate": Infinity, "max_concurrency": 32, "completed": 6, '
    line += '"request_throughput": 2.0, "total_throughput": 1644.7, "mean_e2e_latency_ms": 500.0, "mean_ttft_ms": 60.0}'
    (tmp_path / "sglang.jsonl").write_text(line + "\n")
    (table,) = tables(read_runs([write(tmp_path / "ours.jsonl", serve()), tmp_path / "sglang.jsonl"]))
    rows = {row[:31].strip(): row[31:].split() for row in table.splitlines()[2:]}
    assert rows["Mean E2E Latency (ms)"] == ["1,000.0", "500.0", "0.50x"]
    assert rows["Total token throughput (tok/s)"] == ["-", "1,644.7", "-"]


def test_files_of_the_same_name(tmp_path: Path) -> None:
    for folder in ("x", "y"):
        (tmp_path / folder).mkdir()
    files = [write(tmp_path / folder / "run.jsonl", serve()) for folder in ("x", "y")]
    assert [run.label for run in read_runs(files)] == ["run", "run (2)"]


@pytest.mark.parametrize(
    ("text", "said"), [("", "are empty"), ("oops", "neither JSON"), ('{"a": 1}', "are not of"), ("[1]", "are not of")]
)
def test_files_that_are_no_results(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "a.json"
    file.write_text(text)
    with pytest.raises(ConfigError, match=said):
        read_runs([file])
    with pytest.raises(ConfigError, match="cannot be read"):
        read_runs([tmp_path / "none.json"])


# Red if a plot is missing, empty, or lacks what tells its lines apart.
def test_plots(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = write(tmp_path / "before.jsonl", rounds(1.0), probes(20), serve(1.0), serve(2.0, factor=1.5))
    second = write(tmp_path / "after.jsonl", rounds(0.25), probes(51), serve(1.0, factor=0.5), serve(2.0, factor=0.6))
    assert main(["bench", "compare", str(first), str(second), "--plots", str(tmp_path / "plots")]) == 0
    names = ("ttft_by_round", "ttft_by_images", "latency_cdf", "throughput_latency")
    assert {path.name for path in (tmp_path / "plots").iterdir()} == {
        f"{name}.{end}" for name in names for end in ("png", "svg")
    }
    out = capsys.readouterr().out
    said = {
        "ttft_by_round": ["time to first token (ms)", "round", "before, 720p", "after, 2k"],
        "ttft_by_images": ["time to first token (s)", "images in the request", "before, 2k", "after, 2k"],
        "latency_cdf": ["time since the request was sent (ms)", "before: first token", "after: whole answer"],
        "throughput_latency": ["throughput (requests/s)", "end-to-end latency (ms)", "before: median", "after: P99"],
    }
    for name in names:
        assert str(tmp_path / "plots" / f"{name}.png") in out
        with Image.open(tmp_path / "plots" / f"{name}.png") as image:
            assert image.size == (1024, 704)
            assert len(image.convert("RGB").getcolors(1 << 20) or []) > 10
        root = ElementTree.parse(tmp_path / "plots" / f"{name}.svg").getroot()
        texts = {"".join(node.itertext()).strip() for node in root.iter() if node.tag.endswith("}text")}
        assert set(said[name]) <= texts, texts


def test_without_matplotlib(tmp_path: Path) -> None:
    file = write(tmp_path / "a.jsonl", serve())
    code = "import sys; sys.modules['matplotlib'] = None; from sightline.cli.main import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, "bench", "compare", str(file), "--plots", str(tmp_path / "plots")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1 and "Mean TTFT" in done.stdout
    assert done.stderr.strip() == "sightline: Plots need matplotlib, which is not installed: pip install 'sightline-vlm[plot]'."


def test_tables_do_without_matplotlib_and_torch(tmp_path: Path) -> None:
    file = write(tmp_path / "a.jsonl", serve())
    code = (
        "import sys; from sightline.cli.main import main; main(sys.argv[1:]); "
        "sys.exit(bool({'torch', 'matplotlib'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code, "bench", "compare", str(file)], capture_output=True).returncode == 0
