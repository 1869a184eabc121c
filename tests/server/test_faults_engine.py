"""An engine that is killed or hangs, with requests in every stage: each gets an answer, and the next engine says the same."""

import contextlib
import json
import os
import re
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from server.media import image_part, png, text_part
from server.running import RunningServer, process_exists, running, wait_for
from server.slow_web import slow_web
from server.watch import Held, descendants, until_nothing_left, warm_up
from server.wire import WireResponse, connection, exchange, read_answer, request

QUESTION = {
    "messages": [{"role": "user", "content": [image_part(7), text_part("What is it?")]}],
    "max_tokens": 12,
    "temperature": 0,
    "ignore_eos": True,
}
ENDLESS = {**QUESTION, "max_tokens": 3000, "min_tokens": 3000, "ignore_eos": False}
STREAMS, WAITING = 4, 3


@contextlib.contextmanager
def fragile_server(folder: Path, *others: str) -> Iterator[RunningServer]:
    flags = "--max-restarts 9 --restart-backoff-s 1 --kv-cache-gb 0.1 --embedding-cache-gb 0.05 --request-timeout-s 60"
    more = f"--max-num-seqs {STREAMS} --allow-private-media --allowed-media-ports"
    with running(folder, *flags.split(), *more.split(), *others) as made:
        yield made


@pytest.fixture(scope="module")
def fragile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with fragile_server(tmp_path_factory.mktemp("fragile")) as made:
        yield made


def text_of(answer: WireResponse) -> str:
    assert answer.status == 200, answer
    return str(json.loads(answer.body)["choices"][0]["message"]["content"])


def in_background(client: socket.socket) -> "list[WireResponse]":
    """Reads an answer in a thread; the list has it when it is there."""
    found: list[WireResponse] = []
    threading.Thread(target=lambda: found.append(read_answer(client)), daemon=True).start()
    return found


def kill(server: RunningServer) -> None:
    """Waits until its death is known, too."""
    restarts = server.http.get("/ready").json()["restarts"]
    server.kill_engine()
    wait_for(lambda: server.http.get("/ready").json()["restarts"] > restarts or None, "the death to be seen")


def test_an_engine_is_killed_with_requests_in_every_stage(fragile: RunningServer) -> None:
    """Red when one hangs or goes unanswered, or when the API process keeps something of the engine that was."""
    warm_up(fragile)
    before, held = text_of(exchange(fragile, request(QUESTION))), Held.by(fragile)
    with slow_web(png(7), first=50) as web, contextlib.ExitStack() as stack:

        def client() -> socket.socket:
            return stack.enter_context(connection(fragile))

        streams = [client() for _ in range(STREAMS)]
        for stream in streams:
            stream.sendall(request({**ENDLESS, "stream": True}))
        begun = []
        for stream in streams:
            received = b""
            while received.count(b"data: ") < 2:
                received += stream.recv(4096)
            begun.append(received)
        waiting = [client() for _ in range(WAITING)]
        for one in waiting:
            one.sendall(request(ENDLESS))
        wait_for(lambda: fragile.stats()["waiting"] == WAITING or None, "requests to wait")
        fetching = client()
        part = {"type": "image_url", "image_url": {"url": web.url()}}
        fetching.sendall(request({**QUESTION, "messages": [{"role": "user", "content": [part, text_part("What is it?")]}]}))
        wait_for(lambda: web.waiting or None, "an image to be fetched")
        sending, whole = client(), request(QUESTION)
        sending.sendall(whole[:-1])

        kill(fragile)
        refused = exchange(fragile, request(QUESTION))
        assert (refused.status, refused.error()["code"]) == (503, "engine_unavailable")
        sending.sendall(whole[-1:])
        answer = read_answer(sending)
        assert answer.status == 503 and int(answer.headers["retry-after"]) > 0
        assert fragile.http.get("/health").status_code == 200 and fragile.http.get("/ready").status_code == 503
        for stream, received in zip(streams, begun, strict=True):
            while part_of_it := stream.recv(65536):
                received += part_of_it
                if received.endswith(b"0\r\n\r\n"):
                    break
            last = re.findall(rb"data: (.*)", received)[-1]
            assert json.loads(last)["error"]["code"] == "engine_died", last
            assert b"[DONE]" not in received
        for one in waiting:
            answer = read_answer(one)
            assert (answer.status, answer.error()["code"]) == (503, "engine_died")
            assert int(answer.headers["retry-after"]) > 0
        fragile.until_ready()
        web.go_on.set()  # who was still being prepared may go on with the new engine
        assert text_of(read_answer(fetching)) == before
    assert text_of(exchange(fragile, request(QUESTION))) == before
    warm_up(fragile, again=True)
    until_nothing_left(fragile, held)


def test_an_engine_that_hangs(fragile: RunningServer) -> None:
    """Stopped, not dead. Who waits may leave, /health answers, and once it goes on so do the requests."""
    before = text_of(exchange(fragile, request(QUESTION)))
    pid = int(fragile.stats()["engine_pid"])
    os.kill(pid, signal.SIGSTOP)
    try:
        with connection(fragile) as leaving, connection(fragile) as staying:
            leaving.sendall(request(QUESTION))
            staying.sendall(request(QUESTION))
            answers = in_background(staying)
            gone = len([line for line in fragile.log if line["status"] == 499])
            leaving.close()
            wait_for(lambda: len([x for x in fragile.log if x["status"] == 499]) > gone or None, "the server to notice")
            assert fragile.http.get("/health").status_code == 200
            assert not answers
            os.kill(pid, signal.SIGCONT)
            wait_for(lambda: answers or None, "an answer")
    finally:
        os.kill(pid, signal.SIGCONT)
    assert text_of(answers[0]) == before
    fragile.until_idle()


def test_an_engine_that_hangs_for_long_is_replaced(tmp_path: Path) -> None:
    """Stopped for good. Its stream ends with an error, and the next engine answers as the first did."""
    with running(tmp_path, "--engine-timeout-s", "3", "--restart-backoff-s", "0.1") as server:
        before = text_of(exchange(server, request(QUESTION)))
        pid = int(server.stats()["engine_pid"])
        with connection(server) as client:
            client.sendall(request({**ENDLESS, "stream": True}, "Connection: close"))
            client.recv(15)
            os.kill(pid, signal.SIGSTOP)
            rest = b""
            while piece := client.recv(65536):
                rest += piece
        assert b"engine_died" in rest and b"[DONE]" not in rest
        wait_for(lambda: not process_exists(pid) or None, "the engine's end")
        assert "engine_timeout_s" in server.errors
        wait_for(lambda: server.http.get("/ready").status_code == 200 or None, "the next engine")
        assert text_of(exchange(server, request(QUESTION))) == before


@pytest.mark.slow
def test_the_end_of_a_server_whose_engine_hangs(tmp_path: Path) -> None:
    """It is told to stop, and does, with what it started."""
    with running(tmp_path, "--drain-timeout-s", "1") as server:
        pid = int(server.stats()["engine_pid"])
        with connection(server) as client:
            client.sendall(request({**ENDLESS, "stream": True}))
            client.recv(15)
            os.kill(pid, signal.SIGSTOP)
            server.process.send_signal(signal.SIGTERM)
            assert server.process.wait(60) == 0
        assert not process_exists(pid)
        assert not list(server.temporary.glob("sightline-*"))


def test_restarts_are_bounded_and_ever_later(tmp_path: Path) -> None:
    """Killed as soon as it is there, while it loads or after. Each pause is twice the last; then the server ends with 1."""
    server = RunningServer(tmp_path, "--max-restarts", "3", "--restart-backoff-s", "0.1")
    killed: set[int] = set()

    def ended() -> bool | None:
        for pid in set(descendants(server.process.pid)) - killed:
            killed.add(pid)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return True if server.process.poll() is not None else None

    try:
        wait_for(ended, "the server to give up")
        assert server.process.returncode == 1
        pauses = re.findall(r"restart (\d) follows in ([\d.]+) s", server.errors)
        assert pauses == [("1", "0.1"), ("2", "0.2"), ("3", "0.4")], server.errors
        assert "after 3 restarts" in server.errors.splitlines()[-1]
        assert not list(server.temporary.glob("sightline-*"))
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{server.url}/health")
    finally:
        server.stop(signal.SIGKILL)
