"""Connections: how large headers may be, how long a connection is kept, and what whoever comes during a drain is told."""

import shutil
import signal
import time
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

import httpx
import pytest

from server.media import text_part
from server.running import RunningServer, running, wait_for
from server.wire import CHAT, WireResponses, connection, exchange, head, is_closed, read_answer, request
from sightline.config import ServerConfig
from sightline.engine.messages import EngineFailure
from sightline.server.errors import failed

HELLO = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1}
ENDLESS = {"messages": [{"role": "user", "content": "Go on."}], "max_tokens": 3000, "ignore_eos": True, "stream": True}
LIMIT = 64 * 1024
LARGE = {
    "one header": head("X: " + "x" * 70_000, method="GET", path="/health"),
    "many headers": head(*(f"X-{number}: {'x' * 100}" for number in range(700)), method="GET", path="/health"),
    "a long path": head(method="GET", path="/" + "x" * 70_000),
    "a body behind them": head("X: " + "x" * 70_000, "Content-Length: 2") + b"{}",
    "trailers": head("Transfer-Encoding: chunked") + b"2\r\n{}\r\n0\r\n" + b"X: " + b"x" * 70_000 + b"\r\n\r\n",
}


@pytest.mark.parametrize("piece", [1000, 65_536, 1 << 20], ids=["pieces", "64 KiB", "one write"])
@pytest.mark.parametrize("name", LARGE)
def test_headers_have_a_limit_whatever_the_writes(server: RunningServer, name: str, piece: int) -> None:
    """Red when only what is left unparsed is counted: 70 kB in one write passed."""
    data = LARGE[name]
    with connection(server) as client:
        try:
            for start in range(0, len(data), piece):
                client.sendall(data[start : start + piece])
        except ConnectionError:
            pass  # the answer has come
        answer = read_answer(client)
    # A body that is no request may be refused before its trailers have come.
    assert answer.status in ((400, 431) if name == "trailers" else (431,)), answer
    assert answer.error()


def test_headers_below_the_limit_pass(server: RunningServer) -> None:
    assert exchange(server, head("X: " + "x" * (LIMIT - 200), method="GET", path="/health")).status == 200
    with connection(server) as client:  # each request of a connection has its own
        answers = WireResponses(client)
        for _ in range(3):
            client.sendall(head("X: " + "x" * 40_000, method="GET", path="/health"))
            assert answers.next("GET").status == 200


def test_a_large_head_behind_a_good_request(server: RunningServer) -> None:
    """In one write: the first is answered, the other is not worked on."""
    with connection(server) as client:
        client.sendall(head(method="GET", path="/health") + LARGE["one header"])
        answers = WireResponses(client)
        assert answers.next("GET").status == 200
        assert is_closed(client) or answers.next("GET").status == 431


def test_connections_outlive_those_of_proxies(server: RunningServer) -> None:
    """Red with the 5 s of before: a proxy that keeps its connections for 60 s sends its next request into a reset."""
    assert ServerConfig().keep_alive_timeout_s == 75
    with connection(server) as client:
        answers = WireResponses(client)
        for pause in (0, 6.5):
            time.sleep(pause)
            client.sendall(head(method="GET", path="/health"))
            assert answers.next("GET").status == 200


@pytest.fixture(scope="module")
def brief(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """With a model and pictures in folders whose names nobody should learn."""
    folder = tmp_path_factory.mktemp("brief")
    shutil.copytree(Path(str(resources.files("sightline.data"))) / "embedded", folder / "a-model")
    (folder / "pictures").mkdir()
    (folder / "pictures" / "loop.png").symlink_to("loop.png")
    flags = ("--keep-alive-timeout-s", "0.5", "--allowed-local-media-path", str(folder / "pictures"), "--kv-cache-gb", "0.1")
    with running(folder, "--model", str(folder / "a-model"), *flags) as made:
        yield made


def test_how_long_connections_are_kept_is_a_setting(brief: RunningServer) -> None:
    with connection(brief, timeout=5) as client:
        client.sendall(head(method="GET", path="/health"))
        assert read_answer(client, "GET").status == 200
        assert is_closed(client)


def test_nobody_learns_our_folders(brief: RunningServer) -> None:
    """Neither from refusals nor from what is served. Red when a path of this disk is part of an answer."""
    ours = brief.temporary.parent
    listed = brief.http.get("/v1/models").json()["data"][0]
    assert listed["id"] == listed["root"] == "a-model"
    texts = [
        brief.http.get(path).text
        for path in ("/v1/models", "/v1/models/a-model", "/metrics", "/openapi.json", "/docs", "/ready")
    ]
    urls = (f"file://{ours}/secret.png", "file:///etc/passwd", "file:///nothing", "loop.png", "../x", "file:///proc/self/maps")
    inside = (f"file://{ours}/pictures/loop.png", f"file://{ours}/pictures/none.png", f"file://{ours}/pictures")
    for url in (*urls, *inside):
        part = {"type": "image_url", "image_url": {"url": url}}
        answer = brief.post(messages=[{"role": "user", "content": [part, text_part("x")]}])
        assert answer.status_code == 400
        texts.append(answer.text.replace(url, "what was asked for"))
    texts.append(brief.post(model="other", **HELLO).text)
    package = Path(str(resources.files("sightline"))).parent
    for text in texts:
        assert str(ours) not in text and str(package) not in text, text[:500]
    assert brief.post(model="a-model", **HELLO).json()["model"] == "a-model"
    assert brief.post(model=str(ours / "a-model"), **HELLO).status_code == 200, "whoever knows the path may use it"


def test_what_nobody_expected_names_no_files() -> None:
    """Red when the text of an exception of ours goes to a client as it is."""
    said = failed(
        EngineFailure("internal", "The engine failed with OSError: [Errno 2] nothing at '/dev/shm/ours/x': 1/2 of it")
    ).message
    assert said == "The engine failed with OSError: [Errno 2] nothing at '…': 1/2 of it"


def test_during_a_drain_whoever_comes_is_told_to_come_back(tmp_path: Path) -> None:
    """Red when new connections are refused or left waiting while streams go on, or when each stream that is cut leaves a
    traceback in the log."""
    with running(tmp_path, "--drain-timeout-s", "4", "--kv-cache-gb", "0.1") as server:
        streams = []
        for _ in range(3):
            client = connection(server)
            streams.append(client)
            made = client.__enter__()
            made.sendall(request(ENDLESS))
            assert made.recv(15)
        server.process.send_signal(signal.SIGTERM)

        def told() -> bool | None:
            answer = exchange(server, request(HELLO))
            return True if answer.status == 503 else None

        wait_for(told, "the drain to begin")
        for path, method in ((CHAT, "POST"), ("/v1/models", "GET"), ("/tokenize", "POST"), ("/", "GET")):
            response = httpx.request(method, f"{server.url}{path}", json=HELLO if method == "POST" else None)
            assert response.status_code == 503 and int(response.headers["retry-after"]) > 0, path
            assert response.headers["connection"] == "close"
        assert httpx.get(f"{server.url}/health").status_code == 200
        assert httpx.get(f"{server.url}/ready").status_code == 503
        began = time.monotonic()
        assert server.process.wait(30) == 0
        assert time.monotonic() - began < 8
        for client in streams:
            client.__exit__(None, None, None)
        assert "Traceback" not in server.errors, server.errors
