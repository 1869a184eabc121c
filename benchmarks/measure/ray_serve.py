"""What Ray Serve adds to a request: the same requests in turn to a server and to two replicas behind HAProxy, in one run.

Engines compute nothing, and answer with one token as a stream; both have connections that stay open.
"""

import base64
import io
import json
import re
import socket
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

import numpy as np
from PIL import Image

from sightline.bench.server_process import INSTANT, serving
from sightline.config import Config, ModelConfig, ServerConfig
from sightline.errors import UserError
from sightline.models.locate import EMBEDDED
from sightline.ray import Resources, Scaling
from sightline.ray.environment import set_environment

_ENGINE = (sys.executable, "-m", "sightline.bench.instant_engine", "0")
_PAUSE_S = 0.01  # between requests, as between those of people
_WARM_UP = 10
_END = b"\r\n0\r\n\r\n"
_IMAGES, _QUESTIONS = 20, 3


@dataclass(frozen=True)
class Added:
    body_bytes: int
    direct_ms: tuple[float, float]  # median and 95th percentile
    ray_ms: tuple[float, float]

    @property
    def added_ms(self) -> tuple[float, float]:
        return self.ray_ms[0] - self.direct_ms[0], self.ray_ms[1] - self.direct_ms[1]


@dataclass(frozen=True)
class RayServeCost:
    sizes: list[Added]
    images: int
    at_owner: int  # images of which every question went to one replica
    chunk_us: float  # that a streamed chunk takes longer


def measure(sizes: Sequence[int], requests: int, chunks: int, port: int, on_size: Callable[[Added], None]) -> RayServeCost:
    """`on_size` is told of each size as it is measured."""
    set_environment(only_this_machine=True)
    import ray
    from ray import serve

    from sightline.ray import app

    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, logging_level="warning")
    try:
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        config = Config(model=ModelConfig(model=str(EMBEDDED), load_format="dummy"), server=ServerConfig(log_requests=False))
        serve.run(app(config, Scaling(2, 2), Resources(num_cpus=0.5, num_gpus=0), _ENGINE), name="sightline")
        with serving(["0", str(EMBEDDED), "256"], 120, INSTANT) as server:
            server.until_ready()
            address = urlsplit(server.url())
            assert address.hostname is not None and address.port is not None
            direct, behind = _connect(address.hostname, address.port), _connect("127.0.0.1", port)
            found = []
            for size in sizes:
                found.append(_compare(direct, behind, _body(size, size), requests))
                on_size(found[-1])
            owners = _owners(behind)
            chunk_us = _chunk_us(direct, behind, chunks)
            return RayServeCost(found, _IMAGES, sum(len(replicas) == 1 for replicas in owners), chunk_us)
    finally:
        serve.shutdown()
        ray.shutdown()


def _compare(direct: socket.socket, behind: socket.socket, body: bytes, requests: int) -> Added:
    for _ in range(_WARM_UP):
        _ask(direct, body)
        _ask(behind, body)
    pairs = [(_ask(direct, body)[0], _ask(behind, body)[0]) for _ in range(requests)]
    return Added(len(body), _middle_and_95([one for one, _ in pairs]), _middle_and_95([other for _, other in pairs]))


def _owners(behind: socket.socket) -> list[set[bytes]]:
    """Replicas that each of some images was sent to, with questions of other lengths."""
    found: list[set[bytes]] = [set() for _ in range(_IMAGES)]
    for question in range(_QUESTIONS):
        for seed, replicas in enumerate(found):
            _, answer = _ask(behind, _body(40_000, seed, "?" * (1 + 1000 * question)))
            name = re.search(rb"x-replica-id: (\S+)", answer)
            if name is None:
                raise UserError(f"An answer does not say whose it is: {answer[:300]!r}")
            replicas.add(name[1])
    return found


def _chunk_us(direct: socket.socket, behind: socket.socket, chunks: int) -> float:
    text = json.dumps({"messages": [{"role": "user", "content": "Hello"}], "max_tokens": chunks, "stream": True}).encode()
    pairs = [(_ask(direct, text)[0], _ask(behind, text)[0]) for _ in range(5)]
    return 1e3 * statistics.median(other - one for one, other in pairs) / chunks


def _body(size: int, seed: int, question: str = "What is it?") -> bytes:
    """With a picture of noise that makes it about so many bytes."""
    side = max(8, round((size * 0.75 / 3) ** 0.5))
    pixels = np.random.default_rng(seed).integers(0, 255, (side, side, 3), np.uint8)
    written = io.BytesIO()
    Image.fromarray(pixels).save(written, "png")
    url = "data:image/png;base64," + base64.b64encode(written.getvalue()).decode()
    content = [{"type": "text", "text": question}, {"type": "image_url", "image_url": {"url": url}}]
    return json.dumps({"messages": [{"role": "user", "content": content}], "max_tokens": 1, "stream": True}).encode()


def _connect(host: str, port: int) -> socket.socket:
    connection = socket.create_connection((host, port))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def _ask(connection: socket.socket, body: bytes) -> tuple[float, bytes]:
    """Milliseconds from the first byte of the request to the last of the answer."""
    time.sleep(_PAUSE_S)
    line = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    began = time.perf_counter()
    connection.sendall(line + b"content-length: %d\r\n\r\n" % len(body))
    connection.sendall(body)
    answer = b""
    while not answer.endswith(_END):
        piece = connection.recv(1 << 16)
        answer += piece
        if not piece or not answer.startswith(b"HTTP/1.1 200"):
            raise UserError(f"The answer was {answer[:300]!r}.")
    return 1e3 * (time.perf_counter() - began), answer


def _middle_and_95(values: Sequence[float]) -> tuple[float, float]:
    return statistics.median(values), statistics.quantiles(values, n=20, method="inclusive")[18]
