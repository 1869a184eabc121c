"""Docs that cannot drift: links and paths resolve, figures are those of benchmarks/results, help fits."""

import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from benchmarks.__main__ import NAMES, find
from benchmarks.measure.target_table import TARGETS
from sightline.cli.main import main, make_parser

ROOT = Path(__file__).resolve().parents[1]
DOCS = sorted(
    path
    for pattern in ("*.md", "docs/**/*.md", "benchmarks/**/*.md", "training/*.md", "examples/*.md", "sightline/data/**/*.md")
    for path in ROOT.glob(pattern)
)
SUMMARY = json.loads((ROOT / "benchmarks/results/h200/summary.json").read_text())
PEERS = json.loads((ROOT / "benchmarks/peers/figures.json").read_text())


def anchors(text: str) -> set[str]:
    """Of headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S), re.M)
    plain = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower() for heading in headings]
    return {re.sub(r"[^\w\- ]", "", heading).strip().replace(" ", "-") for heading in plain}


@pytest.mark.parametrize("file", DOCS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_resolve(file: Path) -> None:
    """Red when a file that a link names is gone, or a heading that one leads to."""
    wrong = []
    for target in re.findall(r"\]\(([^)\s]+)\)", file.read_text(encoding="utf-8")):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        linked = (file.parent / name).resolve() if name else file
        if not linked.exists() or (anchor and linked.suffix == ".md" and anchor not in anchors(linked.read_text("utf-8"))):
            wrong.append(target)
    assert not wrong, wrong


@pytest.mark.parametrize("file", DOCS, ids=lambda path: str(path.relative_to(ROOT)))
def test_paths_exist(file: Path) -> None:
    """Red when a file of code that docs name in backticks has moved. `sightline/` and `tests/` may be left away."""
    if file.name == "CHANGELOG.md":
        return
    wrong = []
    for path in re.findall(r"`([\w./-]+/[\w-]+\.(?:py|md|sh|json|jsonl))`", file.read_text(encoding="utf-8")):
        if not any((base / path).exists() for base in (ROOT, ROOT / "sightline", ROOT / "tests", file.parent)):
            wrong.append(path)
    assert not wrong, wrong


def test_where_to_look_first() -> None:
    """The table at the top of docs/architecture.md: five questions, and files that are there."""
    table = (ROOT / "docs/architecture.md").read_text().split("Where to look first:")[1].split("\n\n")[1]
    rows = [line for line in table.splitlines() if "`" in line]
    assert len(rows) == 5
    for path in re.findall(r"`(sightline/[\w/]+\.py)`", table):
        assert (ROOT / path).is_file(), path


# ---- Figures

TTFT = tuple(f"ttft_ms.{size}" for size in ("560", "720p", "1080p", "2k"))
ROUNDS = tuple(f"round7_ttft_ms.{size}" for size in ("720p", "1080p", "2k"))
TOWER = tuple(f"tower_ms.{size}" for size in ("560", "720p", "1080p", "2k", "20x960x1280"))
ROWS = (  # file, how a row of a table begins, keys of its figures
    ("README.md", "first token, one new JPEG of 560²", ("ttft_ms.560",)),
    ("README.md", "720p", ("ttft_ms.720p",)),
    ("README.md", "1080p", ("ttft_ms.1080p",)),
    ("README.md", "2K", ("ttft_ms.2k",)),
    ("README.md", "eighth round of a conversation", ("round7_ttft_ms.1080p",)),
    ("README.md", "requests with one 560² image", ("serve_rps.560",)),
    ("README.md", "tokens per second, 32 answers", ("decode_tok_s.32",)),
    ("docs/performance.md", "first token, one new JPEG", TTFT),
    ("docs/performance.md", "eight images sent, the last one new", ROUNDS),
    ("docs/performance.md", "one request of 20 new JPEGs", ("ttft_ms.20x960x1280",)),
    ("docs/performance.md", "256 requests, 560²", ("serve_rps.560",)),
    ("docs/performance.md", "64 requests, 256 tokens", ("decode_tok_s.32",)),
    ("docs/performance.md", "start to first answer", ("start_s",)),
    ("docs/performance.md", "tower with mergers, as a graph", TOWER),
    ("docs/performance.md", "prefill of 2,048 / 8,192 tokens", ("prefill_ms.2048", "prefill_ms.8192")),
    ("docs/performance.md", "a step of decoding at context 1,024", ("decode_ms.1", "decode_ms.32", "decode_ms.128")),
)  # fmt: skip


def numbers(cell: str) -> list[str]:
    return re.findall(r"\d[\d,]*(?:\.\d+)?", cell)


def shows(text: str, value: float) -> bool:
    """Whether a number as it is printed is the value, rounded to as many decimals."""
    plain = text.replace(",", "")
    decimals = len(plain.partition(".")[2])
    return abs(float(plain) - value) <= 0.5000001 * 10**-decimals


@pytest.mark.parametrize(("file", "row", "keys"), ROWS, ids=lambda part: str(part) if isinstance(part, str) else "")
def test_figures_are_those_of_the_results(file: str, row: str, keys: tuple[str, ...]) -> None:
    """Red when a figure in a table differs from summary.json, or one of others from benchmarks/peers/figures.json."""
    lines = [line for line in (ROOT / file).read_text().splitlines() if line.startswith(f"| {row}")]
    assert lines, f"{file} has no row that begins with {row!r}"
    cells = [cell.strip() for cell in lines[0].strip("|").split("|")][1:]
    ours = [number for cell in (cells if len(keys) == 5 else cells[:1]) for number in numbers(cell)]
    assert len(ours) == len(keys)
    for text, key in zip(ours, keys, strict=True):
        assert shows(text, SUMMARY[key]["value"]), f"{file} says {text} for {key}, the results {SUMMARY[key]['value']}"
    if all(key in PEERS["figures"] for key in keys):
        for engine, cell in zip(("SGLang", "vLLM"), cells[1:], strict=True):
            assert [float(number.replace(",", "")) for number in numbers(cell)] == [
                PEERS["figures"][key][engine] for key in keys
            ]


def test_figures_of_ray_are_those_of_the_results() -> None:
    """Red when docs/scale-out.md says other milliseconds than the last run that is kept."""
    results = json.loads((ROOT / "benchmarks" / "results" / "ray_serve_cpu.json").read_text())
    text = (ROOT / "docs" / "scale-out.md").read_text()
    rows = [line.strip("|").split("|")[1:] for line in text.splitlines() if line.startswith("| a request of ")]
    assert len(rows) == len(results["sizes"])
    for cells, size in zip(rows, results["sizes"], strict=True):
        said = [numbers(cell) for cell in cells]
        for shown, values in zip(said, (size["direct_ms"], size["ray_ms"], size["added_ms"]), strict=True):
            assert len(shown) == 2 and all(map(shows, shown, values)), (shown, values)


def test_targets_have_the_figures_of_others() -> None:
    for target in TARGETS:
        if target.key in PEERS["figures"]:
            assert PEERS["figures"][target.key] == {"SGLang": target.sglang, "vLLM": target.vllm}, target.key


def test_the_client_commands_of_the_comparison_parse() -> None:
    commands = re.findall(r"^sightline (bench .*)$", (ROOT / "benchmarks/peers/README.md").read_text(), re.M)
    assert len(commands) >= 4
    for words in commands:
        make_parser().parse(words.split())


# ---- Help


def test_help_fits_a_screen(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    assert len(capsys.readouterr().out.splitlines()) <= 24


@pytest.mark.parametrize(
    "command", ["serve", "batch", "ask", "bench serve", "bench multiturn", "bench probe", "bench soak", "eval signs"]
)
def test_flags_are_grouped(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([*command.split(), "--help"])
    groups = re.findall(r"^([A-Za-z].*):$", capsys.readouterr().out, re.M)
    assert len(groups) >= 2, groups


@pytest.mark.parametrize("name", NAMES)
def test_benchmarks_have_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert find(name).name == name
    with pytest.raises(SystemExit) as ended:
        find(name).main(["--help"])
    assert ended.value.code == 0 and "results:" in capsys.readouterr().out


# ---- The wheel


@pytest.mark.slow
def test_the_wheel_runs_in_an_environment_of_its_own(tmp_path: Path) -> None:
    """Red when a file of data is missing, code needs a folder of the clone, or benchmarks are in the wheel."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "--no-deps", "--no-build-isolation", "-q", "-w", str(tmp_path), str(ROOT)], check=True)
    (wheel,) = tmp_path.glob("sightline_vlm-*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert not [name for name in names if name.startswith(("benchmarks/", "tests/", "training/", "examples/"))]
    place = tmp_path / "site"
    subprocess.run([*pip, "install", "--no-deps", "-q", "--target", str(place), str(wheel)], check=True)
    code = "import sightline, sys; from sightline.cli.main import main; print(sightline.__file__); sys.exit(main(['demo']))"
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(place)!r}); {code}"],
        cwd=tmp_path, env={"PATH": "/usr/bin:/bin", "HF_HUB_OFFLINE": "1"}, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.startswith(str(place)) and "answer" in done.stdout
