"""More than the server has room for, and bodies made to cost much: refused early, with a time to come back where it helps."""

import contextlib
import json
import select
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from server.media import data_url, image_part, png, text_part
from server.running import RunningServer, wait_for
from server.slow_web import slow_web
from server.watch import Watch
from server.wire import CHAT, connection, exchange, head, is_closed, read_answer, request

HELLO = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2, "temperature": 0}
CAP, IN_FLIGHT = 2_000_000, 6_000_000  # of the server


def padded(size: int) -> dict[str, Any]:
    return {**HELLO, "user": "x" * size}


def test_beyond_the_bytes_in_flight_bodies_wait_in_line(sturdy: RunningServer) -> None:
    """Three and a half large bodies fill the room. Others wait, and are answered when these are through."""
    large, small = request(padded(1_600_000)), request(padded(900_000))
    with Watch(sturdy), contextlib.ExitStack() as stack:
        holders = [stack.enter_context(connection(sturdy)) for _ in range(4)]
        for client, data in zip(holders, [large, large, large, small], strict=True):
            client.sendall(data[:-1])
        wait_for(lambda: sturdy.stats()["inflight_bytes"] > 5_600_000 or None, "the bodies to arrive")
        with ThreadPoolExecutor(8) as pool:
            others = [pool.submit(exchange, sturdy, large) for _ in range(8)]
            wait_for(lambda: sturdy.stats()["num_requests_unread"] == 8 or None, "the others to wait")
            assert sturdy.stats()["inflight_bytes"] < IN_FLIGHT
            for client in holders:
                client.sendall(b"}")
            assert [read_answer(client).status for client in holders] == [200] * 4
            assert [other.result(120).status for other in others] == [200] * 8


def test_what_is_fetched_counts_as_bytes_in_flight(sturdy: RunningServer) -> None:
    """While it comes in; who fetches more than there is room for goes on when the other is through. Red when a small body may
    make the server hold any number of large images."""
    image = png(1) + bytes(4_000_000)  # what follows a PNG's end is not looked at
    with slow_web(image, first=3_800_000) as web, Watch(sturdy), contextlib.ExitStack() as stack:
        part = {"type": "image_url", "image_url": {"url": web.url()}}
        ask = request({**HELLO, "messages": [{"role": "user", "content": [part, text_part("What?")]}]})
        clients = [stack.enter_context(connection(sturdy)) for _ in range(2)]
        for client in clients:
            client.sendall(ask)
        wait_for(lambda: web.waiting == 2 or None, "the image to come in")
        wait_for(lambda: sturdy.stats()["num_requests_unread"] == 1 or None, "one to wait")
        assert 4_000_000 < sturdy.stats()["inflight_bytes"] < 4_100_000
        web.go_on.set()
        assert [read_answer(client).status for client in clients] == [200, 200]


def sent_until_answered(client: socket.socket, most: int) -> int:
    """Sends chunks until something comes back; how many bytes went out."""
    chunk, sent = b"10000\r\n" + b" " * 0x10000 + b"\r\n", 0
    while sent < most and not select.select([client], [], [], 0)[0]:
        try:
            client.sendall(chunk)
        except ConnectionError:
            break
        sent += len(chunk)
    return sent


@pytest.mark.parametrize("path", [CHAT, "/tokenize"])
def test_a_body_beyond_the_cap_is_refused_while_it_comes_in(sturdy: RunningServer, path: str) -> None:
    """No header tells its length. Red when the server reads on: the rest of the 200 MB is never sent."""
    with Watch(sturdy), connection(sturdy) as client:
        client.sendall(head("Transfer-Encoding: chunked", path=path))
        assert sent_until_answered(client, 200_000_000) < 40_000_000  # the cap, and what the system buffers
        answer = read_answer(client)
        assert (answer.status, answer.error()["code"]) == (413, "request_too_large")
        sturdy.until_idle()


@pytest.mark.slow
def test_who_goes_on_sending_what_was_refused_is_cut_off(sturdy: RunningServer) -> None:
    with Watch(sturdy), connection(sturdy) as client:
        client.sendall(head("Transfer-Encoding: chunked"))
        sent_until_answered(client, 200_000_000)
        with contextlib.suppress(ConnectionError):
            while True:  # without a look at the answer
                client.sendall(b"1000\r\n" + b" " * 0x1000 + b"\r\n")
                time.sleep(0.01)
        assert is_closed(client)


def chat(**fields: Any) -> tuple[str, bytes]:
    return CHAT, json.dumps({**HELLO, **fields}).encode()


COSTLY = {  # a few hundred kB or MB that would cost seconds or gigabytes if they were taken as they come
    "a text to tokenise": ("/tokenize", json.dumps({"prompt": "word " * 380_000, "return_token_strs": True}).encode()),
    "a prompt of 1.9 MB": chat(messages=[{"role": "user", "content": "word " * 380_000}]),
    "a prompt without blanks": chat(messages=[{"role": "user", "content": "a" * 1_900_000}]),
    "many messages": chat(messages=[{"role": "user", "content": "a"}] * 50_000),
    "many images": chat(
        messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}] * 30_000}]
    ),
    "many tools": chat(tools=[{"type": "function", "function": {"name": f"f{n}"}} for n in range(30_000)]),
    "many biases": chat(logit_bias={str(n): 1 for n in range(150_000)}),
    "many tokens that stop": chat(stop_token_ids=[5] * 400_000),
    "many values": (CHAT, b'{"metadata":[' + b"[]," * 600_000 + b"0]}"),
    "deep": (CHAT, b'{"metadata":' + b"[" * 900_000 + b"]" * 900_000 + b"}"),
    "a long name of a model": chat(model="x" * 1_900_000),
    "a long name of a field": chat(**{"x" * 1_900_000: 1}),
    "a long expression": chat(response_format={"type": "regex", "regex": "(a|b)" * 300_000}),
    "an image that is none": chat(
        messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": data_url(bytes(1_400_000))}}]}]
    ),
}


def test_costly_bodies_are_cheap_to_refuse(sturdy: RunningServer) -> None:
    """Each is refused with a short sentence, and /health answers all the while."""
    with Watch(sturdy):
        for name, (path, body) in COSTLY.items():
            assert len(body) < CAP, name
            answer = exchange(sturdy, request(body, path=path))
            assert answer.status in (400, 404), (name, answer.status, answer.body[:500])
            assert answer.error() and len(answer.body) < 10_000, name


@pytest.mark.slow
def test_forms_that_take_long_to_judge_hold_up_only_each_other(sturdy: RunningServer) -> None:
    """Each costs seconds of a processor until it is refused. Red when images wait for them in the same line."""
    patterns = [{"pattern": f"^(a|b)*a(a|b){{{number}}}$"} for number in range(1, 40)]
    form = {"type": "json_schema", "json_schema": {"schema": {"allOf": patterns}}}
    with Watch(sturdy), contextlib.ExitStack() as stack:
        askers = [stack.enter_context(connection(sturdy)) for _ in range(6)]
        for asker in askers:
            asker.sendall(request({**HELLO, "response_format": form}))
        wait_for(lambda: sturdy.stats()["inflight_requests"] >= 6 or None, "the forms to arrive")
        for number in range(3):
            assert sturdy.chat([image_part(6000 + number), text_part("What?")], user="x" * 10_000).choices
        assert len(select.select(askers, [], [], 0)[0]) <= 2, "images were answered after the forms"
        # They leave: those in line are not judged at all.


def test_long_answers_with_log_probabilities_hold_up_nobody(sturdy: RunningServer) -> None:
    """Writing them takes a second or so. Red when that is done where all requests are served."""
    with Watch(sturdy):
        body = {**HELLO, "n": 32, "max_tokens": 64, "ignore_eos": True, "logprobs": True, "top_logprobs": 20}
        answer = exchange(sturdy, request(body))
    choices = json.loads(answer.body)["choices"]
    assert len(choices) == 32 and all(len(choice["logprobs"]["content"]) == 64 for choice in choices)


def test_a_body_in_tiny_chunks_holds_up_nobody(sturdy: RunningServer) -> None:
    """Red when what has come is looked through again with each chunk, of which a read from the kernel brings 40,000."""
    body = json.dumps(padded(400_000)).encode()
    chunks = b"".join(b"2\r\n" + body[place : place + 2] + b"\r\n" for place in range(0, len(body) - 1, 2))
    rest = b"1\r\n" + body[-1:] + b"\r\n" if len(body) % 2 else b""
    with Watch(sturdy), connection(sturdy) as client:
        client.sendall(head("Transfer-Encoding: chunked", "Content-Type: application/json") + chunks + rest + b"0\r\n\r\n")
        answer = read_answer(client)
    assert answer.status == 200, answer
