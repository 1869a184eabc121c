"""Clients that leave, in each stage of a request: nothing of it is left, and the others notice nothing."""

import contextlib
import socket
from collections.abc import Callable
from typing import Any

import pytest

from server.media import image_part, png, text_part
from server.running import RunningServer, wait_for
from server.slow_web import slow_web
from server.watch import Watch
from server.wire import abandon, connection, head, request

CLIENTS = 6


def endless(content: Any, stream: bool = True) -> dict[str, Any]:
    fields = {"max_tokens": 3000, "min_tokens": 3000, "stream": stream, "temperature": 0}
    return {"messages": [{"role": "user", "content": content}], **fields}


def with_image(number: int) -> list[dict[str, Any]]:
    return [image_part(3000 + number), text_part("Go on.")]


def leave(clients: list[socket.socket]) -> None:
    """Half of them say goodbye, the others break."""
    for number, client in enumerate(clients):
        client.close() if number % 2 else abandon(client)


def until(server: RunningServer, what: str, holds: Callable[[dict[str, Any]], bool]) -> None:
    wait_for(lambda: holds(server.stats()) or None, what)


# ---- Stages: each brings its clients there, and checks that they are there


def in_headers(server: RunningServer, clients: list[socket.socket]) -> None:
    for client in clients:
        client.sendall(head("Content-Length: 100")[:40])


def in_body(server: RunningServer, clients: list[socket.socket]) -> None:
    for number, client in enumerate(clients):
        client.sendall(request(endless(with_image(number)))[:-20])
    until(server, "the bodies to arrive", lambda stats: stats["inflight_requests"] >= CLIENTS and stats["inflight_bytes"] > 0)


def after_body(server: RunningServer, clients: list[socket.socket]) -> None:
    """They leave at once: whichever stage the server is in by the time it hears of it."""
    for number, client in enumerate(clients):
        client.sendall(request(endless(with_image(number))))


def in_queue(server: RunningServer, clients: list[socket.socket]) -> None:
    """Behind eight that run, as many as may."""
    for number, client in enumerate(clients):
        client.sendall(request(endless(with_image(number))))
    until(server, "requests to wait", lambda stats: stats["waiting"] >= CLIENTS)


def in_prefill(server: RunningServer, clients: list[socket.socket]) -> None:
    """Six prompts of thousands of tokens, of which a step computes 256: at most one is beyond it when the first run."""
    for number, client in enumerate(clients):
        client.sendall(request(endless([image_part(3100 + number), text_part("word " * 1200)])))
    until(server, "requests to run", lambda stats: stats["running"] > 0)


def in_stream(server: RunningServer, clients: list[socket.socket]) -> None:
    for number, client in enumerate(clients):
        client.sendall(request(endless(with_image(number))))
    for client in clients:
        received = b""
        while received.count(b"data: ") < 3:
            received += client.recv(4096)


def in_decoding(server: RunningServer, clients: list[socket.socket]) -> None:
    """Of an answer that will be sent whole."""
    for number, client in enumerate(clients):
        client.sendall(request(endless(with_image(number), stream=False)))
    steps = server.stats()["steps"]
    until(server, "all to run", lambda stats: stats["running"] >= CLIENTS and stats["steps"] > steps + 10)


@pytest.mark.parametrize("stage", [in_headers, in_body, after_body, in_prefill, in_stream, in_decoding])
def test_a_client_leaves(sturdy: RunningServer, stage: Callable[[RunningServer, list[socket.socket]], None]) -> None:
    """Red when the engine goes on to the last of 3000 tokens, or when files, pages, rows or bytes stay behind."""
    with Watch(sturdy), contextlib.ExitStack() as stack:
        before = sturdy.stats()["tokens"]
        clients = [stack.enter_context(connection(sturdy)) for _ in range(CLIENTS)]
        stage(sturdy, clients)
        leave(clients)
        assert sturdy.until_idle()["tokens"] - before < 3000 * CLIENTS
        assert sturdy.chat().choices


def test_a_client_leaves_while_it_waits_for_its_turn(sturdy: RunningServer) -> None:
    """Its place is free at once, and those that run go on."""
    with Watch(sturdy), contextlib.ExitStack() as stack:
        running = [stack.enter_context(connection(sturdy)) for _ in range(8)]
        for number, client in enumerate(running):
            client.sendall(request(endless(f"Go on, {number}.")))
        until(sturdy, "eight to run", lambda stats: stats["running"] == 8)
        waiting = [stack.enter_context(connection(sturdy)) for _ in range(CLIENTS)]
        in_queue(sturdy, waiting)
        leave(waiting)
        until(sturdy, "the line to be empty", lambda stats: stats["waiting"] == 0 and stats["inflight_requests"] == 8)
        assert sturdy.stats()["running"] == 8
        leave(running)
        sturdy.until_idle()


def test_a_client_leaves_while_its_image_is_fetched(sturdy: RunningServer) -> None:
    """The fetching ends as well. Red when the other host is read from for somebody who is gone."""
    with slow_web(png(1), first=50) as web, Watch(sturdy), contextlib.ExitStack() as stack:
        clients = [stack.enter_context(connection(sturdy)) for _ in range(CLIENTS)]
        for number, client in enumerate(clients):
            content = [{"type": "image_url", "image_url": {"url": web.url(number)}}, text_part("Go on.")]
            client.sendall(request(endless(content)))
        wait_for(lambda: web.waiting == CLIENTS or None, "the images to be asked for")
        leave(clients)
        sturdy.until_idle()
        wait_for(lambda: web.hung_up == CLIENTS or None, "the fetching to end")
