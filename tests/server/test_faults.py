"""Real processes, real accidents: clients that leave, an engine that dies, a server that is told to stop."""

import contextlib
import json
import signal
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from server.media import image_part, text_part
from server.running import RunningServer, process_exists, running, wait_for

ENDLESS = {"max_tokens": 4000, "extra_body": {"ignore_eos": True}}


def raw_request(body: dict[str, Any]) -> bytes:
    content = json.dumps(body).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(content)}\r\n\r\n"
    return head.encode() + content


@contextlib.contextmanager
def connection(server: RunningServer) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as made:
        yield made


def endless(stream: bool) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "Go on."}], "max_tokens": 4000, "ignore_eos": True, "stream": stream}


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_a_client_that_leaves_frees_its_request(server: RunningServer, stream: bool) -> None:
    """While its answer is being written. Red when the engine goes on to the last of 4000 tokens: it has no time for that."""
    with connection(server) as client:
        client.sendall(raw_request(endless(stream)))
        wait_for(lambda: server.stats()["running"] or None, "the request to run")
        if stream:
            assert b"200 OK" in client.recv(4096)
    begun = server.stats()["tokens"]
    stats = server.until_idle()
    assert stats["tokens"] - begun < 1000
    line = wait_for(lambda: next((x for x in server.log if x["status"] == 499), None), "a line in the log")
    assert line["error"] == "The client closed the connection."


def test_a_client_that_leaves_while_it_waits(server: RunningServer) -> None:
    """Many more than run at once; all of them go before their turn."""
    with contextlib.ExitStack() as stack:
        for number in range(20):
            client = stack.enter_context(connection(server))
            body = endless(True)
            body["messages"][0]["content"] = [image_part(400 + number), text_part("Go on.")]
            client.sendall(raw_request(body))
        wait_for(lambda: server.stats()["inflight_requests"] >= 20 or None, "the requests to arrive")
    server.until_idle()
    assert server.chat().choices


def test_a_client_that_leaves_in_the_middle_of_its_body(server: RunningServer) -> None:
    with connection(server) as client:
        client.sendall(raw_request(endless(True))[:-20])
        wait_for(lambda: server.stats()["inflight_requests"] or None, "the request to arrive")
    server.until_idle()


def test_health_answers_while_the_engine_works(server: RunningServer) -> None:
    """Slow answers here would mean that something runs on the event loop for long."""
    bodies = [
        endless(True) | {"messages": [{"role": "user", "content": [image_part(500 + n), text_part("x")]}]} for n in range(8)
    ]
    with contextlib.ExitStack() as stack:
        for body in bodies:
            stack.enter_context(connection(server)).sendall(raw_request(body))
        wait_for(lambda: server.stats()["running"] or None, "requests to run")
        for _ in range(50):
            assert server.http.get("/health").status_code == 200
    server.until_idle()


def test_the_api_process_has_no_torch(server: RunningServer) -> None:
    """It answered questions about images all the while. The engine's process shows that the test can see torch."""

    def libraries(pid: int) -> str:
        return Path(f"/proc/{pid}/maps").read_text()

    server.chat([image_part(1), text_part("What?")])
    assert "libtorch" in libraries(server.stats()["engine_pid"])
    assert "libtorch" not in libraries(server.process.pid)


@pytest.fixture(scope="module")
def fragile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server to be harmed."""
    flags = ["--max-restarts", "9", "--restart-backoff-s", "0.05"]
    with running(tmp_path_factory.mktemp("fragile"), *flags) as made:
        yield made


def test_an_engine_that_is_killed_ends_streams_with_an_error_and_comes_back(fragile: RunningServer) -> None:
    """kill -9 in mid-stream: every request gets an answer, later ones are served by a new engine."""
    started = threading.Barrier(5, timeout=60)

    def stream() -> tuple[int, Exception]:
        pieces = 0
        try:
            for _ in fragile.chat("Go on.", stream=True, **ENDLESS):
                pieces += 1
                if pieces == 3:
                    started.wait()
        except openai.APIError as error:
            return pieces, error
        raise AssertionError("the stream ended as if nothing had happened")

    def whole() -> Exception:
        try:
            fragile.chat("Go on.", **ENDLESS)
        except openai.APIError as error:
            return error
        raise AssertionError("an answer came from a dead engine")

    with ThreadPoolExecutor(6) as pool:
        streams = [pool.submit(stream) for _ in range(4)]
        waiting = pool.submit(whole)
        started.wait()
        wait_for(lambda: fragile.stats()["running"] >= 5 or None, "all requests to run")
        pid = fragile.kill_engine()
        for future in streams:
            pieces, error = future.result(60)
            assert pieces >= 3 and "stopped while it worked" in str(error)
        refused = waiting.result(60)
    assert isinstance(refused, openai.InternalServerError) and refused.status_code == 503
    assert refused.code == "engine_died"
    assert not process_exists(pid)
    fragile.until_ready()
    assert fragile.chat().choices and fragile.http.get("/ready").json()["restarts"] >= 1
    fragile.until_idle()


def test_new_requests_get_503_while_the_engine_restarts(fragile: RunningServer) -> None:
    fragile.kill_engine()

    def refused() -> httpx.Response | None:
        response = fragile.post(messages=[{"role": "user", "content": "x"}], max_tokens=1)
        return response if response.status_code == 503 else None

    response = wait_for(refused, "a refusal")
    assert response.json()["error"]["type"] == "service_unavailable_error"
    assert int(response.headers["retry-after"]) > 0
    assert fragile.http.get("/health").status_code == 200
    assert fragile.http.get("/ready").status_code == 503
    fragile.until_ready()
    assert fragile.chat().choices


def test_an_engine_that_keeps_dying_ends_the_server(tmp_path: Path) -> None:
    """The second death within ten minutes, with one restart allowed."""
    with running(tmp_path, "--max-restarts", "1", "--restart-backoff-s", "0.05") as server:
        server.kill_engine()
        wait_for(lambda: server.http.get("/ready").json()["restarts"] or None, "the death to be seen")
        server.until_ready()
        server.kill_engine()
        assert server.process.wait(60) == 1
        assert "was killed by signal 9, after 1 restarts" in server.errors.splitlines()[-1]


def test_a_server_that_is_told_to_stop_lets_requests_end(tmp_path: Path) -> None:
    """SIGTERM in mid-stream: the stream ends well, nobody else is let in, the code is 0, no process is left."""
    with running(tmp_path) as server:
        engine = int(server.stats()["engine_pid"])
        stream = iter(server.chat("Go on.", stream=True, max_tokens=300, extra_body={"ignore_eos": True}))
        next(stream)
        server.process.send_signal(signal.SIGTERM)

        def refused() -> bool | None:
            try:
                return True if httpx.get(f"{server.url}/ready").status_code == 503 else None
            except httpx.TransportError:
                return True

        wait_for(refused, "the server to refuse")
        reasons = [chunk.choices[0].finish_reason for chunk in stream]
        assert reasons[-1] == "length"
        assert server.process.wait(60) == 0
        assert not process_exists(engine)


def test_a_drain_has_an_end(tmp_path: Path) -> None:
    with running(tmp_path, "--drain-timeout-s", "1") as server:
        stream = iter(server.chat("Go on.", stream=True, **ENDLESS))
        next(stream)
        server.process.send_signal(signal.SIGTERM)
        with pytest.raises(openai.APIError, match="shutting down"):
            list(stream)
        assert server.process.wait(60) == 0


def test_an_engine_does_not_outlive_its_server(tmp_path: Path) -> None:
    server = RunningServer(tmp_path).until_ready()
    engine = int(server.stats()["engine_pid"])
    server.stop(signal.SIGKILL)
    wait_for(lambda: True if not process_exists(engine) else None, "the engine to end")


def test_nothing_is_left_behind(server: RunningServer) -> None:
    """After everything above: as many open files as before, no request, no page in use."""
    folder = Path(f"/proc/{server.process.pid}/fd")
    for _ in range(3):
        server.chat()
    server.until_idle()
    before = len(list(folder.iterdir()))
    for number in range(30):
        with connection(server) as client:
            client.sendall(raw_request(endless(number % 2 == 0)))
            time.sleep(0.01)
    server.until_idle()
    wait_for(lambda: True if len(list(folder.iterdir())) <= before else None, "files to be closed")
