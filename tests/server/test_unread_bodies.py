"""Bodies for which there is no room yet: they wait unread, and lose nothing by it."""

import contextlib
import json
import socket
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from server.media import data_url, png, text_part
from server.running import RunningServer, wait_for
from server.watch import Watch
from server.wire import WireResponse, abandon, connection, exchange, head, read_answer, request

HELLO = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2, "temperature": 0}
IN_FLIGHT = 6_000_000  # of the server
BODY_TIMEOUT_S = 4.0


def padded(size: int) -> bytes:
    return json.dumps({**HELLO, "user": "x" * size}).encode()


@contextlib.contextmanager
def full(server: RunningServer) -> Iterator[None]:
    """A block in which there is no room for another large body."""
    body = request(padded(1_900_000))
    with contextlib.ExitStack() as stack:
        holders = [stack.enter_context(connection(server)) for _ in range(3)]
        for holder in holders:
            holder.sendall(body[:-1])
        wait_for(lambda: server.stats()["inflight_bytes"] > 5_700_000 or None, "the room to be full")
        keep_alive = time.monotonic() + BODY_TIMEOUT_S  # and a second for each 100 kB
        yield
        assert time.monotonic() < keep_alive + 15, "the holders were cut off meanwhile"
        for holder in holders:
            holder.sendall(body[-1:])
        assert [read_answer(holder).status for holder in holders] == [200] * 3


def until_unread(server: RunningServer, count: int) -> None:
    wait_for(lambda: server.stats()["num_requests_unread"] == count or None, f"{count} requests to wait")


def send_while_it_goes(client: socket.socket, data: bytes, patience_s: float = 1.0) -> int:
    """How much of it the other end, and the kernel between, have taken."""
    sent, end = 0, time.monotonic() + patience_s
    client.setblocking(False)
    while sent < len(data) and time.monotonic() < end:
        try:
            sent += client.send(data[sent : sent + 65536])
        except BlockingIOError:
            time.sleep(0.01)
    client.setblocking(True)
    client.settimeout(60)
    return sent


def small_buffers(server: RunningServer) -> socket.socket:
    """A connection that takes little from a sender before the server reads."""
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)
    made.connect(("127.0.0.1", server.port))
    return made


def test_a_body_waits_unread(sturdy: RunningServer) -> None:
    """Longer than a body may take to come in. Red when it is read into memory, or when the wait counts as its slowness."""
    data = request(padded(1_900_000))
    with Watch(sturdy), contextlib.ExitStack() as stack:
        client = stack.enter_context(small_buffers(sturdy))
        with full(sturdy):
            sent = send_while_it_goes(client, data)
            until_unread(sturdy, 1)
            assert 0 < sent < 1_000_000
            time.sleep(BODY_TIMEOUT_S + 0.5)
            assert send_while_it_goes(client, data[sent:], 0.2) == 0
        client.sendall(data[sent:])
        assert read_answer(client).status == 200


@pytest.mark.parametrize("leave", ["goodbye", "reset"])
def test_who_leaves_the_line_is_noticed(sturdy: RunningServer, leave: str) -> None:
    """Red when nobody looks after connections that are not read."""
    data = request(padded(1_900_000))
    with Watch(sturdy), full(sturdy):
        clients = [socket.create_connection(("127.0.0.1", sturdy.port)) for _ in range(3)]
        for client, amount in zip(clients, (200, 1000, 20_000), strict=True):
            client.sendall(data[:amount])
        until_unread(sturdy, 3)
        for client in clients:
            abandon(client) if leave == "reset" else client.close()
        until_unread(sturdy, 0)
        assert sturdy.stats()["inflight_requests"] == 3


def chunks_of(body: bytes, size: int) -> list[bytes]:
    pieces = [body[start : start + size] for start in range(0, len(body), size)]
    return [b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces] + [b"0\r\n\r\n"]


def test_bodies_in_chunks_do_not_lock_each_other_out(sturdy: RunningServer) -> None:
    """Nobody knows how long they are, and all come in side by side, more than there is room for. Red when each holds a part and
    waits for the others."""

    def send(number: int) -> WireResponse:
        with connection(sturdy) as client:
            client.sendall(head("Transfer-Encoding: chunked"))
            for chunk in chunks_of(padded(1_400_000 + number), 100_000):
                client.sendall(chunk)
                time.sleep(0.01)
            return read_answer(client)

    with Watch(sturdy), ThreadPoolExecutor(12) as pool:
        assert [answer.status for answer in pool.map(send, range(12))] == [200] * 12


def questions(count: int) -> Sequence[dict[str, Any]]:
    """With images that no other has, each a tenth of the room."""
    for_all = {"max_tokens": 2, "temperature": 0}
    for number in range(count):
        files = [png(8000 + 4 * number + place) + bytes(110_000) for place in range(4)]
        parts = [{"type": "image_url", "image_url": {"url": data_url(file)}} for file in files]
        yield {"messages": [{"role": "user", "content": [*parts, text_part("What?")]}], **for_all}  # type: ignore[misc]


def test_ten_times_the_room_is_answered_and_nothing_lost(sturdy: RunningServer) -> None:
    """A hundred requests at once of 600 kB each, in 6 MB. Red when one is refused, or more is held than allowed."""
    bodies = [request(body) for body in questions(100)]
    peak = 0
    with Watch(sturdy), ThreadPoolExecutor(100) as pool:
        asked = [pool.submit(exchange, sturdy, body) for body in bodies]
        while not all(one.done() for one in asked):
            peak = max(peak, sturdy.stats()["inflight_bytes"])
            time.sleep(0.02)
        assert [one.result().status for one in asked] == [200] * 100
    assert 3_000_000 < peak <= IN_FLIGHT + 100_000  # tokens of prompts come on top
