"""Connections that are held open or used in odd ways: none is kept for ever, and none keeps others from being answered."""

import contextlib
import json
import socket
from collections.abc import Iterator

import pytest

from server.running import RunningServer
from server.watch import Watch
from server.wire import CHAT, connection, exchange, head, is_closed, read_answer, request

HELLO = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2, "temperature": 0}
PLAIN = head(method="GET", path="/health")


HELD_OPEN = {  # what is sent, and what follows its answer
    "an empty line begins no request, but stops the keep-alive time": (PLAIN, b"\r\n"),
    "a body after the answer": (head("Content-Length: 5", path="/nowhere"), b"{...}"),
    "half a request": (PLAIN, b"GET /hea"),
    "another protocol": (head("Connection: Upgrade", "Upgrade: websocket", method="GET", path="/health"), b"\x81\x85"),
}

STALLED = {  # they may go on for longer: whoever sends a body reads the answer only when it is through
    "a body that does not end": (head("Content-Length: 5", path="/nowhere"), b"{"),
    "a chunk whose head does not end": (head("Transfer-Encoding: chunked", path="/nowhere"), b"5;" + b"x" * 1000),
}


def test_slow_connections_hold_up_nobody_and_have_an_end(sturdy: RunningServer) -> None:
    """Fifty that send a byte of headers or of a body now and then, some whose bytes might stop all clocks, and hundreds that
    send nothing, which are more than the files that a process may have open if it does not ask for more."""
    headers, body = head("X-Long: " + "x" * 1000), request({**HELLO, "user": "x" * 1000})
    start = body.index(b"\r\n\r\n") + 4
    with Watch(sturdy), contextlib.ExitStack() as stack:
        held = {why: stack.enter_context(held_open(sturdy, *case)) for why, case in HELD_OPEN.items()}
        slow = [(stack.enter_context(connection(sturdy)), headers, 20) for _ in range(25)]
        slow += [(stack.enter_context(connection(sturdy)), body, start) for _ in range(25)]
        silent = [stack.enter_context(connection(sturdy)) for _ in range(250)]
        for client, data, sent in slow:
            client.sendall(data[:sent])
        for turn in range(10):
            assert sturdy.post(**HELLO).status_code == 200
            for client, data, sent in slow:
                with contextlib.suppress(ConnectionError):  # its time may be up
                    client.sendall(data[sent + turn : sent + turn + 1])
        for client, *_ in slow:
            assert read_answer(client).status == 408
            assert is_closed(client)
        for client in silent:
            assert read_answer(client).status == 408
        for why, client in held.items():
            assert is_closed(client), why


@contextlib.contextmanager
def held_open(server: RunningServer, begin: bytes, then: bytes) -> Iterator[socket.socket]:
    """A connection that has had an answer, and goes on with something else than a request."""
    with connection(server) as client:
        client.sendall(begin)
        assert read_answer(client).status in (200, 404)
        with contextlib.suppress(ConnectionError):
            client.sendall(then)
        yield client


@pytest.mark.slow
def test_bodies_that_stall_after_their_answer_have_an_end(sturdy: RunningServer) -> None:
    with Watch(sturdy), contextlib.ExitStack() as stack:
        held = {why: stack.enter_context(held_open(sturdy, *case)) for why, case in STALLED.items()}
        for why, client in held.items():
            assert is_closed(client), why


def test_clients_that_offer_http_2_are_answered_in_http_1(sturdy: RunningServer) -> None:
    """As Java's do with every first request. Red when the body is lost, being taken for the other protocol."""
    offer = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA")
    whole = request(HELLO, *offer)
    cut = whole.index(b"\r\n\r\n") + 4
    expected = json.loads(exchange(sturdy, request(HELLO)).body)["choices"]
    for parts in ([whole], [whole[:cut], whole[cut:]], [whole[: cut - 2], whole[cut - 2 :]], [whole[:40], whole[40:]]):
        with connection(sturdy) as client:
            for part in parts:
                client.sendall(part)
                sturdy.http.get("/health")  # long enough for the part to arrive alone
            answer = read_answer(client)
            assert answer.status == 200, answer
            assert json.loads(answer.body)["choices"] == expected
            client.sendall(request(HELLO))  # the connection is as good as any
            assert read_answer(client).status == 200


@pytest.mark.parametrize("path", [CHAT, "/v1/completions", "/tokenize", "/flush_cache", "/health"])
def test_expectations_are_met_before_a_body_is_sent(sturdy: RunningServer, path: str) -> None:
    """A body that would be too large is refused before it is sent, where the client asks first."""
    with connection(sturdy) as client:
        client.sendall(head(f"Content-Length: {10**9}", "Expect: 100-continue", path=path))
        assert read_answer(client).status in (401, 405, 413)
