"""The examples of docs/serving.md and docs/apis.md, run as they stand."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from server.running import ADMIN, RunningServer

ROOT = Path(__file__).resolve().parents[2]
BLOCKS = [
    block for block in re.findall(r"^```sh\n(.*?)^```", (ROOT / "docs/serving.md").read_text(), re.S | re.M) if "curl" in block
]


def run(block: str, server: RunningServer) -> str:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    script = block.replace("http://127.0.0.1:8000", server.url).replace("Bearer admin", f"Bearer {ADMIN}")
    done = subprocess.run(["bash", "-euo", "pipefail", "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def answers(output: str) -> list[Any]:
    """JSON objects, one after another."""
    decoder, found, place = json.JSONDecoder(), [], 0
    while place < len(output):
        value, place = decoder.raw_decode(output, place)
        found.append(value)
    return found


def test_the_first_example_of_other_apis(server: RunningServer, capsys: pytest.CaptureFixture[str]) -> None:
    """The second needs a client of its own, as tests/clients has it."""
    first, second = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs/apis.md").read_text(), re.S | re.M)
    assert "import anthropic" in second
    exec(compile(first.replace("http://127.0.0.1:8000", server.url), "docs/apis.md", "exec"), {})
    assert capsys.readouterr().out.strip()


def test_there_are_examples() -> None:
    assert len(BLOCKS) == 4


def test_a_question(server: RunningServer) -> None:
    (answer,) = answers(run(BLOCKS[0], server))
    assert answer["choices"][0]["message"]["role"] == "assistant" and answer["model"] == "sightline-embedded"


def test_an_image_in_a_stream_then_by_its_name(server: RunningServer) -> None:
    events = [line.removeprefix("data: ") for line in run(BLOCKS[1], server).splitlines() if line]
    assert events.pop() == "[DONE]"
    chunks = [json.loads(event) for event in events]
    assert chunks[-1]["choices"] == [] and chunks[-1]["usage"]["prompt_tokens_details"]["image_tokens"] > 0
    text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks[:-1])
    (again,) = answers(run(BLOCKS[2], server))
    assert again["choices"][0]["message"]["content"] == text
    assert again["metadata"]["encoded_items"] == 0 and again["metadata"]["timings_ms"]["decode"] == 0


def test_the_other_endpoints(server: RunningServer) -> None:
    completion, models, tokens, text, ready, version, flushed = answers(run(BLOCKS[3], server))
    assert len(completion["choices"]) == 4 and models["data"]
    assert tokens["count"] == len(tokens["token_strs"]) and isinstance(text["prompt"], str)
    assert ready["ready"] and version["version"] and flushed == {}
