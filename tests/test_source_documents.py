"""Commands in docs/source-documents.md: each is understood, and runs against the embedded model at smaller sizes."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.__main__ import main as benchmark
from evals.published_data import write_mmmu, write_ocrbench
from server.running import RunningServer, running
from sightline.cli.main import main, make_parser
from sightline.cli.serve import serve_config
from sightline.cli.sglang_flags import OTHERS

PAGE = Path(__file__).parents[1] / "docs" / "source-documents.md"
LINES = PAGE.read_text(encoding="utf-8").partition("## Figures")[0].splitlines()
ROWS = [line.split(" | ") for line in LINES if line.startswith("| S")]
OURS = {
    row[0].strip("| "): found[0]
    for row in ROWS
    if (found := re.findall(r"`((?:sightline|python -m benchmarks\.)[^`]+)`", row[2]))
}
SERVERS = {name: command for name, command in OURS.items() if command.startswith("sightline serve")}
CLIENTS = {name: command for name, command in OURS.items() if name not in SERVERS}
SMALLER = {
    r"--num-prompts \d+": "--num-prompts 3",
    r"--max-images \d+": "--max-images 3",
    r"--rounds \d+": "--rounds 2",
    r"--(image-count|images) \d+": r"--\1 2",
    r"\b(560x560|960x1280|720p|1080p|2k)\b": "64x96",
    r"(64x96)( 64x96)+": r"\1",
    r"--output-len 1024": "--output-len 4",
    r"--max-tokens 8192": "--max-tokens 8",
}


def test_every_row_has_a_command_of_ours_or_says_why_not() -> None:
    assert len(ROWS) == 16 and len(SERVERS) == 4 and len(CLIENTS) == 10
    assert all(len(row) == 4 and row[3].strip("| ") for row in ROWS)


@pytest.mark.parametrize("name", SERVERS)
def test_servers_understand_their_commands(name: str) -> None:
    arguments = make_parser().parse(shlex.split(SERVERS[name])[1:])
    assert serve_config(arguments).server.port == 30000


# What a test cannot have: their checkpoints, their ports, several GPUs.
ELSEWHERE = re.compile(r"sightline serve|--model(-path)? DIR|\bDIR\b|--(host|port|tp-size) \S+")


@pytest.mark.slow
@pytest.mark.parametrize("name", SERVERS)
def test_servers_run(name: str, tmp_path: Path) -> None:
    with running(tmp_path, *shlex.split(ELSEWHERE.sub("", SERVERS[name]))) as server:
        assert server.chat("Hello", model="auto", max_tokens=2).usage.completion_tokens > 0


# Red if a flag of theirs that we do not take has no sentence of its own.
@pytest.mark.parametrize("row", [row for row in ROWS if "launch_server" in row[1]], ids=lambda row: row[0])
def test_flags_that_are_not_taken_have_their_sentence(row: list[str]) -> None:
    theirs = set(re.findall(r"--[\w-]+", row[1])) - {"--attention-backend", "--mm-attention-backend"}
    known = {flag for action in make_parser().parse(["serve"]).subparser._actions for flag in action.option_strings}
    assert theirs <= known | set(OTHERS)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with running(tmp_path_factory.mktemp("server")) as made:
        yield made


@pytest.mark.slow
@pytest.mark.parametrize("name", CLIENTS)
def test_clients_run(name: str, server: RunningServer, tmp_path: Path) -> None:
    command = CLIENTS[name]
    for pattern, smaller in SMALLER.items():
        command = re.sub(pattern, smaller, command)
    command = command.replace("127.0.0.1:30000", f"127.0.0.1:{server.port}").replace("--port 30000", f"--port {server.port}")
    words = shlex.split(command.replace("python -m benchmarks.", "benchmarks "))
    run, words = benchmark if words[0] == "benchmarks" else main, words[1:]
    if "mmmu" in words:
        words += ["--data" if words[0] == "eval" else "--dataset-path", str(write_mmmu(tmp_path / "mmmu"))]
    if "ocrbench" in words:
        words += ["--data", str(write_ocrbench(tmp_path / "ocrbench", [["one"], ["two"]]))]
    if "stages" in words:
        words += ["--device", "cpu", "--repeats", "1"]
    assert run(words) == 0
