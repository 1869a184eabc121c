"""What the internet sends, in numbers: every request is answered, nothing hangs or is left behind, /health stays quick."""

import asyncio
import contextlib
import io
import json
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image

from assets import folder as assets_folder
from server.media import data_url, image_part, png, text_part
from server.running import MODEL, RunningServer, running, wait_for

HEALTH_S = 1.0  # the 99th of 100 answers; 0.1 on a machine that does nothing else, but this one also runs the clients


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with running(tmp_path_factory.mktemp("target"), "--body-timeout-s", "5", "--header-timeout-s", "5") as made:
        yield made


class Watch:
    """Asks /health all the while, and compares what the server holds before and after."""

    def __init__(self, server: RunningServer) -> None:
        self._server = server
        self._over = threading.Event()
        self._seconds: list[float] = []

    def __enter__(self) -> "Watch":
        # Whatever is made on first use; sockets hand over large frames by a thread and files of its own.
        self._server.chat([image_part(noise()), text_part("What?")])
        self._before = self._held()
        self._thread = threading.Thread(target=self._ask)
        self._thread.start()
        return self

    def __exit__(self, kind: Any, *_: object) -> None:
        self._over.set()
        self._thread.join()
        if kind is None:
            assert len(self._seconds) > 10
            assert float(np.quantile(self._seconds, 0.99)) < HEALTH_S
            wait_for(lambda: True if self._held() <= self._before else None, "files and memory to be given back")

    def _ask(self) -> None:
        with httpx.Client(base_url=self._server.url, timeout=60) as client:
            while not self._over.is_set():
                begun = time.perf_counter()
                assert client.get("/health").status_code == 200
                self._seconds.append(time.perf_counter() - begun)
                time.sleep(0.01)

    def _held(self) -> tuple[int, int, int]:
        """Open files of the server and of its engine, and files in shared memory."""
        stats = self._server.until_idle()
        files = [len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in (self._server.process.pid, stats["engine_pid"])]
        return files[0] + files[1], stats["inflight_bytes"], len(list(Path("/dev/shm").glob("*sightline*")))


def noise() -> bytes:
    """A picture of 200 kB."""
    buffer = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (256, 256, 3), dtype=np.uint8)).save(buffer, "PNG")
    return buffer.getvalue()


def damaged(data: bytes, random: np.random.Generator) -> bytes:
    """Some bytes changed, cut out, doubled or moved to the end."""
    made = bytearray(data)
    for _ in range(int(random.integers(1, 6))):
        start = int(random.integers(0, len(made) or 1))
        end = start + int(random.integers(1, 24))
        kind = random.integers(0, 5)
        if kind == 0:
            made[start:end] = random.bytes(len(made[start:end]))
        elif kind == 1:
            del made[start:end]
        elif kind == 2:
            made[start:start] = made[start:end]
        elif kind == 3:
            made += made[start:end]
        else:
            made[start:end] = bytes(random.choice([b'"', b"{", b"]", b"\\", b"\0", b"\xff", b"null", b"-1e999"]))
    return bytes(made)


def jpeg(seed: int) -> bytes:
    buffer = io.BytesIO()
    Image.open(io.BytesIO(png(seed))).save(buffer, "JPEG", quality=60)
    return buffer.getvalue()


def asking(image: bytes) -> bytes:
    part = {"type": "image_url", "image_url": {"url": data_url(image)}}
    return json.dumps({"max_tokens": 1, "messages": [{"role": "user", "content": [part, text_part("What?")]}]}).encode()


def bodies(count: int) -> Iterator[bytes]:
    random = np.random.default_rng(0)
    good = {
        "model": MODEL,
        "messages": [{"role": "user", "content": [text_part("What is it?")]}],
        "max_tokens": 1,
        "temperature": 0.5,
        "stop": ["x"],
        "logprobs": True,
        "response_format": {"type": "text"},
    }
    for number in range(count):
        if number % 2:
            yield damaged(json.dumps(good).encode(), random)
        else:
            yield asking(damaged(jpeg(number % 7) if number % 4 else png(number % 7), random))


def test_a_thousand_damaged_bodies_and_images(target: RunningServer) -> None:
    """Mutations of good ones, and files that have crashed decoders. Each gets an answer, and none is our fault."""
    sent = list(bodies(1000))
    root = assets_folder()
    if root is not None:
        sent += [
            asking(path.read_bytes()) for path in sorted((root / "images" / "hostile").iterdir()) if path.stat().st_size < 10**6
        ]

    def post(body: bytes) -> int:
        response = target.http.post("/v1/chat/completions", content=body)
        assert response.status_code == 200 or "message" in response.json()["error"], response.text
        return response.status_code

    with Watch(target), ThreadPoolExecutor(8) as pool:
        codes = Counter(pool.map(post, sent))
    assert set(codes) <= {200, 400, 404}, codes
    assert codes[400] > 300
    assert target.http.get("/ready").json()["restarts"] == 0


def test_two_hundred_streams_at_once(target: RunningServer) -> None:
    async def stream(client: httpx.AsyncClient, number: int) -> str:
        body = {
            "messages": [{"role": "user", "content": [image_part(number % 20), text_part(f"Question {number}")]}],
            "max_tokens": 5,
            "stream": True,
            "ignore_eos": True,
            "stream_options": {"include_usage": True},
        }
        async with client.stream("POST", "/v1/chat/completions", json=body) as response:
            assert response.status_code == 200
            events = [line.removeprefix("data: ") async for line in response.aiter_lines() if line]
        assert json.loads(events[-2])["usage"]["completion_tokens"] == 5
        return events[-1]

    async def all_of_them() -> list[str]:
        limits = httpx.Limits(max_connections=200)
        async with httpx.AsyncClient(base_url=target.url, timeout=300, limits=limits) as client:
            return await asyncio.gather(*(stream(client, number) for number in range(200)))

    with Watch(target):
        assert asyncio.run(all_of_them()) == ["[DONE]"] * 200


def test_uploads_that_never_end_and_clients_that_leave(target: RunningServer) -> None:
    """Half of them stop in the headers or the body and wait, half of them leave in some stage."""
    whole = asking(png(3, 512, 512))
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(whole)}\r\n\r\n".encode() + whole
    with Watch(target), contextlib.ExitStack() as stack:
        waiting = [stack.enter_context(socket.create_connection(("127.0.0.1", target.port), 60)) for _ in range(30)]
        for number, client in enumerate(waiting):
            client.sendall(head[: 30 + number * len(head) // 31])
        for number in range(60):
            with socket.create_connection(("127.0.0.1", target.port), 60) as client:
                client.sendall(head[: (number + 1) * len(head) // 60])
                time.sleep(0.002 * (number % 5))
        assert target.chat().choices, "others are served meanwhile"
        for client in waiting:
            assert client.recv(100).startswith(b"HTTP/1.1 408")


def test_a_client_that_does_not_read_holds_up_nobody(target: RunningServer) -> None:
    body = json.dumps(
        {
            "messages": [{"role": "user", "content": "Go on."}],
            "max_tokens": 3000,
            "ignore_eos": True,
            "stream": True,
            "n": 8,
            "logprobs": True,
            "top_logprobs": 20,
        }
    )
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        client.connect(("127.0.0.1", target.port))
        client.sendall(f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
        wait_for(lambda: target.stats()["running"] or None, "the request to run")
        for _ in range(10):
            assert target.chat().choices
    target.until_idle()
