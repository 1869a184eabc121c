"""The same requests as a file for `sightline batch` and as a load over HTTP by a client that loses no time, in one run.

The client has its bodies ready in memory and as many requests in flight as the batch has rows in progress, each on a connection
that stays open. Engines compute nothing: what is compared is the way to them and back.
"""

import asyncio
import base64
import io
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import uvloop
from PIL import Image

from sightline.bench.load.http import HttpClient
from sightline.bench.server_process import INSTANT, serving
from sightline.errors import UserError

_PATH = "/v1/chat/completions"
_STEP_MS = "0"
_KEPT_MB = "256"
_WARM_UP = 32  # requests before the clock runs


@dataclass(frozen=True)
class BatchRound:
    batch_s: float  # from the first row to the last answer
    batch_wall_s: float  # with the start and the end of the process
    client_s: float

    @property
    def ratio(self) -> float:
        return self.batch_s / self.client_s


def pictures(count: int, image_bytes: int) -> Iterator[bytes]:
    """JPEGs of about so many bytes, all different: one picture with noise, with a number behind its end."""
    random = np.random.default_rng(0)
    side = max(64, int((image_bytes / 0.83) ** 0.5))
    noise = random.integers(0, 255, (side, side, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(noise).save(buffer, "JPEG", quality=85)
    for number in range(count):
        yield buffer.getvalue() + number.to_bytes(8)


def bodies(count: int, image_bytes: int) -> Iterator[bytes]:
    for data in pictures(count, image_bytes):
        url = f"data:image/jpeg;base64,{base64.b64encode(data).decode()}"
        content = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "What is this?"}]
        yield msgspec.json.encode({"messages": [{"role": "user", "content": content}], "max_tokens": 4})


def write_rows(path: Path, requests: list[bytes]) -> None:
    with path.open("wb") as file:
        for number, body in enumerate(requests):
            file.write(b'{"custom_id":"row-%d","method":"POST","url":"%s","body":%s}\n' % (number, _PATH.encode(), body))


def compare(model: Path, requests: list[bytes], concurrency: int, rounds: int) -> Iterator[BatchRound]:
    with tempfile.TemporaryDirectory(prefix="batch-") as folder:
        rows = Path(folder) / "rows.jsonl"
        write_rows(rows, requests)
        for number in range(rounds):
            client_s = over_http(model, requests, concurrency)
            batch_s, wall_s = in_batch(model, rows, Path(folder) / f"answers-{number}.jsonl", len(requests), concurrency)
            yield BatchRound(batch_s, wall_s, client_s)


def in_batch(model: Path, rows: Path, answers: Path, count: int, concurrency: int) -> tuple[float, float]:
    command = [
        sys.executable,
        "-m",
        "sightline.bench.instant_batch",
        _STEP_MS,
        str(model),
        str(concurrency),
        str(rows),
        str(answers),
    ]
    began = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wall_s = time.perf_counter() - began
    if done.returncode:
        raise UserError(f"The batch ended with {done.returncode}: {done.stderr[-500:]}")
    said = json.loads(done.stdout.splitlines()[-1])
    with answers.open("rb") as file:
        written = sum(1 for _ in file)
    if said["answered"] != count or written != count:
        raise UserError(f"Of {count} rows {said['answered']} were answered and {written} are in the file.")
    return said["seconds"], wall_s


def over_http(model: Path, requests: list[bytes], concurrency: int) -> float:
    with serving([_STEP_MS, str(model), _KEPT_MB], 120, INSTANT) as server:
        server.until_ready()
        return uvloop.run(_ask_all(server.url(), requests, concurrency))


async def _ask_all(url: str, requests: list[bytes], concurrency: int) -> float:
    client = HttpClient(url)
    left = iter(requests)

    async def ask_in_turn() -> None:
        for body in left:
            reply = await client.request("POST", _PATH, [body])
            if reply.status != 200:
                raise UserError(f"The server answered {reply.status}: {bytes(reply.body[:300])!r}")

    text = msgspec.json.encode({"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4})
    for _ in range(_WARM_UP):
        await client.request("POST", _PATH, [text])
    began = time.perf_counter()
    await asyncio.gather(*(ask_in_turn() for _ in range(concurrency)))
    seconds = time.perf_counter() - began
    client.close()
    return seconds
