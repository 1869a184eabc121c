"""`sightline batch` as a process, with the embedded model."""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from device import DEVICE
from server.media import text_part

CHAT = "/v1/chat/completions"
PATIENCE_S = 120.0


def row(custom_id: str, url: str = CHAT, **body: Any) -> dict[str, Any]:
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": body}


def chat(custom_id: str, *content: Mapping[str, Any], **fields: Any) -> dict[str, Any]:
    message = {"role": "user", "content": [*content, text_part("What does the sign say?")]}
    return row(custom_id, messages=[message], **{"max_tokens": 8, "temperature": 0, **fields})


def image_url(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


def write(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(one) + "\n" for one in rows))
    return path


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def ids_of(path: Path) -> list[str]:
    return [line["custom_id"] for line in lines_of(path)]


def command(requests: Path, answers: Path, *flags: str) -> list[str]:
    own = [sys.executable, "-m", "sightline.cli.main", "batch", str(requests), str(answers), "--device", DEVICE]
    return [*own, *(() if DEVICE == "cpu" else ("--kv-cache-gb", "0.5", "--embedding-cache-gb", "0.1")), *flags]


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1"}


def batch(requests: Path, answers: Path, *flags: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        command(requests, answers, *flags), capture_output=True, text=True, timeout=PATIENCE_S, env=environment(), check=False
    )
    assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
    return done


@contextlib.contextmanager
def begun(requests: Path, answers: Path, *flags: str) -> Iterator["subprocess.Popen[str]"]:
    """A batch that goes on while the block runs; it is killed at the end if it has not ended."""
    process = subprocess.Popen(
        command(requests, answers, *flags), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def count_lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0
