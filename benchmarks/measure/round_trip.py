"""What a client waits for beside the engine, over HTTP, with an engine process that answers at once.

    send     from the first byte of a request to the last one handed to the kernel
    answer   from then to the first event of the answer: the rest of the body's way in, digest, prompt, the way to the engine
             process and back
    ttft     both

and what a token of a stream costs the API process, when many streams move by a token with each step of the engine.
"""

import asyncio
import socket
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from sightline.bench.server_process import INSTANT, serving
from sightline.config import ServerConfig

STEP_MS = 12.0  # long enough for 256 streams on one core
_PAUSE_S = 0.01  # between requests, as between those of people: code and data are not in the processor's caches
_END = b"\r\n0\r\n\r\n"
_WARM_UP = 5
_KEPT_MB = ServerConfig().kept_media_mb


@dataclass(frozen=True)
class RoundTrip:
    """Milliseconds: a tenth of the requests took less, half of them, nine tenths."""

    send: tuple[float, float, float]
    answer: tuple[float, float, float]
    ttft: tuple[float, float, float]
    processor_ms: float  # of the API process, per request


@dataclass(frozen=True)
class StreamCost:
    streams: int
    tokens: int  # of all streams
    processor_us: float  # of the API process, per token

    @property
    def tokens_per_second(self) -> float:
        """The most that one core can pass on."""
        return 1e6 / self.processor_us


def round_trip(model: Path, body: bytes, requests: int, kept_media_mb: int = _KEPT_MB) -> RoundTrip:
    """`body` asks for one token. After the first request its images are known."""
    with serving(["0", str(model), str(kept_media_mb)], 120, INSTANT) as server:
        server.until_ready()
        address = urlsplit(server.url())
        assert address.hostname is not None and address.port is not None
        with socket.create_connection((address.hostname, address.port)) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for _ in range(_WARM_UP):
                ask(connection, body)
            before = processor_seconds(server.process.pid)
            times = [ask(connection, body) for _ in range(requests)]
            spent = processor_seconds(server.process.pid) - before
    return RoundTrip(
        send=_tenths([send for send, _ in times]),
        answer=_tenths([answer for _, answer in times]),
        ttft=_tenths([send + answer for send, answer in times]),
        processor_ms=1e3 * spent / requests,
    )


def ask(connection: socket.socket, body: bytes) -> tuple[float, float]:
    """Milliseconds of `send` and `answer`."""
    time.sleep(_PAUSE_S)
    began = time.perf_counter()
    connection.sendall(_head(len(body)))
    connection.sendall(body)
    sent = time.perf_counter()
    answer, first = b"", 0.0
    while not answer.endswith(_END):
        piece = connection.recv(65536)
        if not piece:
            raise ConnectionError(f"The server closed the connection after {answer[:200]!r}.")
        answer += piece
        if not first and b"data: " in answer:
            first = time.perf_counter()
    if not first:
        raise ConnectionError(f"The server did not answer with events but with {answer[:200]!r}.")
    return 1e3 * (sent - began), 1e3 * (first - sent)


def stream_costs(model: Path, counts: Sequence[int], tokens: int) -> list[StreamCost]:
    """Each stream has so many tokens."""
    with serving([str(STEP_MS), str(model), str(_KEPT_MB)], 120, INSTANT) as server:
        server.until_ready()
        address = urlsplit(server.url())
        assert address.hostname is not None and address.port is not None
        costs = []
        for count in counts:
            asyncio.run(_streams(address.hostname, address.port, min(count, 8), 8))
            before = processor_seconds(server.process.pid)
            asyncio.run(_streams(address.hostname, address.port, count, tokens))
            spent = processor_seconds(server.process.pid) - before
            costs.append(StreamCost(count, count * tokens, 1e6 * spent / (count * tokens)))
    return costs


async def _streams(host: str, port: int, count: int, tokens: int) -> None:
    message = {"role": "user", "content": "Hello"}
    body = msgspec.json.encode({"messages": [message], "max_tokens": tokens, "stream": True})

    async def one() -> None:
        reader, writer = await asyncio.open_connection(host, port, limit=1 << 26)
        writer.write(_head(len(body)) + body)
        answer = await reader.readuntil(_END)
        writer.close()
        if answer.count(b"data: ") != tokens + 1:
            raise ConnectionError(f"A stream of {tokens} tokens began with {answer[:200]!r}.")

    await asyncio.gather(*(one() for _ in range(count)))


def _head(length: int) -> bytes:
    line = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    return line + b"content-length: %d\r\n\r\n" % length


def processor_seconds(pid: int) -> float:
    """User and system time of a process so far, all its threads."""
    return time.clock_gettime(~pid << 3 | 2)  # what clock_getcpuclockid(3) returns on Linux


def _tenths(values: Sequence[float]) -> tuple[float, float, float]:
    """The first, the fifth and the ninth tenth."""
    if len(values) == 1:
        return (values[0],) * 3
    cuts = statistics.quantiles(values, n=10, method="inclusive")
    return cuts[0], cuts[4], cuts[8]
