"""Every script of examples/ as a reader would run it, and what it prints."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from server.running import RunningServer

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "examples"
ALONE = {
    "ask_an_image.py": r"PIANO\n",
    "many_at_once.py": r".*sign\.png: PIANO\n.*phone\.png: [+\d ,]+\n.*missing\.png: Image .* No such file.*\n",
    "stream.py": r"left\n",
    "structured_output.py": r"\{'text': '.*', 'legible': (True|False)\}\n",
}
OF_A_SERVER = {
    "openai_client.py": r"PIANO\n",
    "tools.py": r"called zoom \{'corner': '(left|right)', 'factor': [234]\}\nanswered '.*'\n",
    "curl.sh": r'.*"content":"PIANO".*',
}


def output_of(name: str, *arguments: str) -> str:
    interpreter = [sys.executable] if name.endswith(".py") else ["bash"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    command = [*interpreter, f"examples/{name}", *arguments]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_each_example_is_tried_and_listed() -> None:
    scripts = {file.name for file in FOLDER.iterdir() if file.suffix in (".py", ".sh")}
    assert scripts == ALONE.keys() | OF_A_SERVER.keys()
    assert set(re.findall(r"\]\(([\w.]+)\)", (FOLDER / "README.md").read_text())) == scripts


@pytest.mark.slow
@pytest.mark.parametrize("name", ALONE)
def test_examples_of_the_library(name: str) -> None:
    said = output_of(name)
    assert re.fullmatch(ALONE[name], said), said


@pytest.mark.parametrize("name", OF_A_SERVER)
def test_examples_of_the_server(name: str, server: RunningServer) -> None:
    said = output_of(name, server.url)
    assert re.fullmatch(OF_A_SERVER[name], said, re.DOTALL), said
