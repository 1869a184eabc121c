"""Requests that come before the answer to the one before them, and what may follow a body: hardly any client does either."""

import contextlib
import json
import time
from typing import Any

import pytest

from server.running import RunningServer, wait_for
from server.watch import Watch
from server.wire import CHAT, WireResponses, abandon, connection, exchange, head, is_closed, read_answer, request

HEALTH = head(method="GET", path="/health")
HELLO: dict[str, Any] = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2, "temperature": 0}
LONG = {**HELLO, "max_tokens": 300, "min_tokens": 300}
ENDLESS = {**HELLO, "max_tokens": 3000, "min_tokens": 3000}


def test_each_gets_its_answer_in_order(sturdy: RunningServer) -> None:
    asked = [request(HELLO), HEALTH, request(LONG), HEALTH, request(b"{", path=CHAT), request(HELLO)]
    with Watch(sturdy), connection(sturdy) as client:
        answers = WireResponses(client)
        client.sendall(b"".join(asked))
        assert [answers.next().status for _ in asked] == [200, 200, 200, 200, 400, 200]
        whole = b"".join(asked)
        for start in range(0, len(whole), 97):  # in pieces, of which none is a request
            client.sendall(whole[start : start + 97])
        assert [answers.next().status for _ in asked] == [200, 200, 200, 200, 400, 200]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("leave", ["goodbye", "reset"])
def test_a_client_leaves_with_another_request_behind(sturdy: RunningServer, stream: bool, leave: str) -> None:
    """Red when the engine goes on for nobody."""
    with Watch(sturdy), contextlib.ExitStack() as stack:
        client = stack.enter_context(connection(sturdy))
        client.sendall(request({**ENDLESS, "stream": stream}) + HEALTH + HEALTH[:10])
        wait_for(lambda: sturdy.stats()["running"] or None, "the request to run")
        abandon(client) if leave == "reset" else client.close()
        begun = time.monotonic()
        wait_for(lambda: not sturdy.stats()["running"] or None, "the request to end")
        assert time.monotonic() - begun < 2


def test_a_request_behind_closes_only_its_own_connection(sturdy: RunningServer) -> None:
    """Its body comes late. Red when the answer before it ends what it has not got yet."""
    last = request(HELLO, "Connection: close")
    with Watch(sturdy), connection(sturdy) as client:
        client.sendall(request(LONG) + last[:-5])
        assert read_answer(client).status == 200
        time.sleep(0.5)
        client.sendall(last[-5:])
        assert read_answer(client).status == 200
        assert is_closed(client)


def test_headers_that_wait_for_an_answer_are_not_late(sturdy: RunningServer) -> None:
    """Red when somebody is told in the middle of a stream that headers took too long which the server did not read."""
    with Watch(sturdy), connection(sturdy, timeout=60) as client:
        client.sendall(request({**ENDLESS, "max_tokens": 1500, "min_tokens": 1500, "stream": True}))
        wait_for(lambda: sturdy.stats()["running"] or None, "the request to run")
        client.sendall(HEALTH + HEALTH[:10])
        time.sleep(0.2)
        client.sendall(HEALTH[10:])
        answers = WireResponses(client)
        stream = answers.next()
        assert stream.body.endswith(b"data: [DONE]\n\n") and b"HTTP/1.1" not in stream.body
        assert [answers.next().status for _ in range(2)] == [200, 200]


def test_what_is_no_request_behind_one_ends_the_connection_after_its_answer(sturdy: RunningServer) -> None:
    with Watch(sturdy), connection(sturdy) as client:
        client.sendall(request(LONG) + b"\0nonsense\r\n\r\n")
        answer = read_answer(client)
        assert answer.status == 200 and len(json.loads(answer.body)["choices"]) == 1
        assert is_closed(client)


def test_thousands_of_requests_at_once_hold_up_nobody(sturdy: RunningServer) -> None:
    with Watch(sturdy), connection(sturdy) as client, contextlib.suppress(ConnectionError, TimeoutError):
        client.settimeout(5)
        for _ in range(40):
            client.sendall(HEALTH * 10_000)


@pytest.mark.parametrize("trailer", [b"a: b\r\n" * 10_000, b"x" * 60_000], ids=["many", "one"])
@pytest.mark.parametrize("path", [CHAT, "/nowhere"])
def test_what_follows_a_body_in_chunks_has_a_limit(sturdy: RunningServer, trailer: bytes, path: str) -> None:
    with Watch(sturdy), connection(sturdy) as client:
        client.sendall(head("Transfer-Encoding: chunked", path=path) + b"2\r\n{}\r\n0\r\na: ")
        sent = 0
        with contextlib.suppress(ConnectionError):
            while sent < 50_000_000:
                client.sendall(trailer)
                sent += len(trailer)
        assert sent < 20_000_000, "the server took them all"


def test_a_short_trailer_is_passed_over(sturdy: RunningServer) -> None:
    body = json.dumps(HELLO).encode()
    chunks = b"%x\r\n%s\r\n0\r\nX-Sum: 5\r\n\r\n" % (len(body), body)
    with connection(sturdy) as client:
        for _ in range(2):
            client.sendall(head("Transfer-Encoding: chunked") + chunks)
            assert read_answer(client).status == 200


def test_tunnels_are_refused(sturdy: RunningServer) -> None:
    for headers, body in (((), b""), (("Content-Length: 5",), b"hello")):
        with Watch(sturdy):
            answer = exchange(sturdy, head(*headers, method="CONNECT", path="host:80") + body)
            assert answer.status == 400 and answer.error()["code"] == "invalid_http"
