"""The light HTTP client against real sockets, and the meter of its own lag."""

import asyncio
import contextlib
import ssl
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from certificates import make_certificate
from sightline.bench.load.connection import in_event_loop
from sightline.bench.load.http import HttpClient, HttpReply, TransportError
from sightline.bench.load.lag import LagMeter
from sightline.errors import ConfigError

ScriptedReply = Callable[[asyncio.StreamWriter], Awaitable[None]]


def ask(
    *answers: ScriptedReply, listener: Callable[[float, bytes], None] | None = None
) -> tuple[list[HttpReply | TransportError], int]:
    """One request per answer, one after another; what came back, and how many connections were made."""
    connections = 0

    async def run() -> list[HttpReply | TransportError]:
        left = list(answers)

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal connections
            connections += 1
            try:
                while left:
                    await reader.readuntil(b"\r\n\r\n")
                    await left.pop(0)(writer)
                    await writer.drain()
            except (asyncio.IncompleteReadError, ConnectionError):
                pass
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1")
        client = HttpClient(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        found: list[HttpReply | TransportError] = []
        for _ in answers:
            try:
                async with asyncio.timeout(30):
                    found.append(await client.request("GET", "/", listener=listener))
            except TransportError as error:
                found.append(error)
        client.close()
        server.close()
        return found

    return in_event_loop(run()), connections


def sends(*pieces: bytes, close: bool = False, pause: float = 0.0) -> ScriptedReply:
    async def answer(writer: asyncio.StreamWriter) -> None:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(pause)
        if close:
            writer.close()
            raise ConnectionError

    return answer


SHORT = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


def test_a_connection_is_used_again() -> None:
    replies, connections = ask(sends(SHORT), sends(SHORT), sends(SHORT))
    assert [bytes(reply.body) for reply in replies if isinstance(reply, HttpReply)] == [b"ok"] * 3
    assert connections == 1


def test_a_connection_that_the_server_ends_is_not() -> None:
    last = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok"
    replies, connections = ask(sends(last), sends(SHORT))
    assert all(isinstance(reply, HttpReply) and reply.body == b"ok" for reply in replies)
    assert connections == 2


@pytest.mark.parametrize(
    "answer",
    [
        sends(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", b"3\r\nabc\r\n", b"2\r\nde\r\n0\r\n\r\n", pause=0.02),
        sends(*(bytes([byte]) for byte in b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nabcde")),
        sends(b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nabcde", pause=0.02),
        sends(b"HTTP/1.1 200 OK\r\n\r\nabc", b"de", close=True, pause=0.02),  # the body ends with the connection
    ],
    ids=["chunked", "byte by byte", "after 100", "until the end"],
)
def test_bodies_of_all_forms(answer: ScriptedReply) -> None:
    heard: list[tuple[float, bytes]] = []
    before = time.perf_counter()
    replies, _ = ask(answer, listener=lambda stamp, data: heard.append((stamp, data)))
    assert isinstance(replies[0], HttpReply) and replies[0].status == 200
    assert b"".join(data for _, data in heard) == b"abcde" and not replies[0].body
    stamps = [before, replies[0].started, *(stamp for stamp, _ in heard), replies[0].ended, time.perf_counter()]
    assert stamps == sorted(stamps)


def test_a_listener_hears_nothing_of_an_error() -> None:
    heard: list[bytes] = []
    error = sends(b"HTTP/1.1 503 No\r\ncontent-length: 4\r\n\r\nlate")
    replies, _ = ask(error, listener=lambda stamp, data: heard.append(data))
    assert isinstance(replies[0], HttpReply) and (replies[0].status, bytes(replies[0].body)) == (503, b"late")
    assert not heard


@pytest.mark.parametrize(
    ("answer", "kind", "said"),
    [
        (sends(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nabc", close=True), "connection lost", "middle of its answer"),
        (sends(close=True), "connection lost", "before it answered"),
        (sends(b"SSH-2.0-OpenSSH\r\n"), "not HTTP", "is not HTTP"),
    ],
)
def test_answers_that_break_off(answer: ScriptedReply, kind: str, said: str) -> None:
    replies, connections = ask(answer, sends(SHORT))
    assert isinstance(replies[0], TransportError) and replies[0].kind == kind and said in str(replies[0])
    assert isinstance(replies[1], HttpReply) and connections == 2  # the next request is not harmed


def test_addresses() -> None:
    async def make(url: str, **headers: str) -> HttpClient:
        return HttpClient(url, headers)

    for url in ("", "ftp://x", "http://", "http://x:99999", "http://x:abc"):
        with pytest.raises(ConfigError, match="The base URL"):
            in_event_loop(make(url))
    with pytest.raises(ConfigError, match="The header 'authorization'"):
        in_event_loop(make("http://x", authorization="a\r\nb: c"))
    for url in ("http://x", "https://x/v1/", "localhost:8000", "http://[::1]:8000/v1"):
        in_event_loop(make(url))


# ---- Lag


# Red if work of our own that blocks the loop is not seen, or a standstill counts only once.
def test_own_work_is_seen_as_lag() -> None:
    async def run() -> LagMeter:
        meter = LagMeter()
        meter.start()
        for _ in range(5):
            await asyncio.sleep(0.02)
            end = time.thread_time() + 0.06
            while time.thread_time() < end:
                pass
        return meter

    lag = in_event_loop(_stopped(run))
    assert lag.own_p99 > 30 and lag.p99 >= lag.own_p99 and lag.is_bottleneck
    assert 0 < lag.cpu <= 1.01


# Red if waiting for the processor, which is not our work, is put down to the client.
def test_standing_still_is_not_own_work() -> None:
    async def run() -> LagMeter:
        meter = LagMeter()
        meter.start()
        for _ in range(5):
            await asyncio.sleep(0.02)
            time.sleep(0.05)  # as if another program had the core
        return meter

    lag = in_event_loop(_stopped(run))
    assert lag.p99 > 30 and lag.own_p99 < lag.p99 / 3 and lag.is_crowded


async def _stopped(run: Callable[[], Awaitable[LagMeter]]):  # type: ignore[no-untyped-def]
    meter = await run()
    await asyncio.sleep(0.02)
    return meter.stop()


def test_a_standstill_counts_for_its_whole_length() -> None:
    meter = LagMeter()
    for _ in range(96):
        meter.add(0.0, 0.0)
    meter.add(0.0201, 0.0201)  # four more calls were due within it: 20, 15, 10, 5 and 0.1 ms
    lag = meter.stop()
    assert lag.max == pytest.approx(20.1)
    assert lag.p99 == pytest.approx(15.1, abs=1.0)


# ---- TLS


# Red if a certificate is not checked, or a hosted API could not be reached.
def test_https(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate, key = make_certificate(tmp_path, "localhost")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)

    async def run() -> HttpReply:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
                await reader.readuntil(b"\r\n\r\n")
                writer.write(SHORT)
                await writer.drain()
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", ssl=context)
        client = HttpClient(f"https://localhost:{server.sockets[0].getsockname()[1]}")
        try:
            return await client.request("GET", "/")
        finally:
            client.close()
            server.close()

    with pytest.raises(TransportError, match="certificate"):
        in_event_loop(run())
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    assert in_event_loop(run()).body == b"ok"


# Red if the rest of a refused request is taken for the start of the next one.
def test_an_answer_before_the_whole_request() -> None:
    heads: list[bytes] = []

    async def run() -> list[int]:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
                heads.append(await reader.readuntil(b"\r\n\r\n"))
                writer.write(b"HTTP/1.1 413 Large\r\ncontent-length: 0\r\n\r\n" if len(heads) == 1 else SHORT)
                await writer.drain()
                await asyncio.sleep(1.0)  # reads no more
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", limit=1024)
        client = HttpClient(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        first = await client.request("POST", "/", [b"x" * (1 << 26)])
        second = await client.request("GET", "/")
        client.close()
        server.close()
        return [first.status, second.status]

    assert in_event_loop(run()) == [413, 200]
    assert len(heads) == 2 and heads[1].startswith(b"GET / ")
