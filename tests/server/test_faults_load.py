"""Many streams at once, with images: each has the answer that it would have alone."""

import asyncio
import contextlib
import json
import socket
from itertools import islice, takewhile
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from device import DEVICE
from server.media import image_part, text_part
from server.running import RunningServer, running
from server.watch import Watch
from server.wire import request

IMAGES, QUESTIONS = 5, ("What is it?", "Which colours are there?", "Go on.", "How many blocks?")
TOKENS = 12
MOST_NOISE = 0.1  # of a log-probability: rounding to bfloat16 makes some of it, another request's keys ten times as much


def body(number: int) -> dict[str, Any]:
    """As many different requests as there are pairs of an image and a question."""
    content = [image_part(5000 + number % IMAGES), text_part(QUESTIONS[number // IMAGES % len(QUESTIONS)])]
    options = {"include_usage": True}
    fields = {"max_tokens": TOKENS, "ignore_eos": True, "temperature": 0, "logprobs": True, "top_logprobs": 2}
    return {"messages": [{"role": "user", "content": content}], "stream": True, "stream_options": options, **fields}


class Place(NamedTuple):
    """A place of an answer."""

    token: str
    logprob: float
    lead: float  # over the second best


async def answer_of(client: httpx.AsyncClient, number: int) -> list[Place]:
    """The answer of a stream that must be complete."""
    async with client.stream("POST", "/v1/chat/completions", json=body(number)) as response:
        assert response.status_code == 200, await response.aread()
        events = [line.removeprefix("data: ") async for line in response.aiter_lines() if line]
    assert events.pop() == "[DONE]"
    chunks = [json.loads(event) for event in events]
    assert chunks[-1]["usage"]["completion_tokens"] == TOKENS
    told = [choice["logprobs"] for chunk in chunks for choice in chunk["choices"] if choice["logprobs"]]
    return [
        Place(place["token"], place["logprob"], place["top_logprobs"][0]["logprob"] - place["top_logprobs"][1]["logprob"])
        for logprobs in told
        for place in logprobs["content"]
    ]


async def compare(url: str, count: int) -> None:
    limits = httpx.Limits(max_connections=count, max_keepalive_connections=0)
    async with httpx.AsyncClient(base_url=url, timeout=600, limits=limits) as client:
        alone = [await answer_of(client, number) for number in range(IMAGES * len(QUESTIONS))]
        assert all(len(answer) == TOKENS for answer in alone)
        assert len({tuple(place.token for place in answer) for answer in alone}) > 5
        together = await asyncio.gather(*(answer_of(client, number) for number in range(count)))
    pairs = [(alone[number % len(alone)], answer) for number, answer in enumerate(together)]
    same = [sum(1 for _ in takewhile(lambda two: two[0].token == two[1].token, zip(*pair, strict=True))) for pair in pairs]
    different = [number for number, length in enumerate(same) if length < TOKENS]
    if DEVICE == "cpu":
        assert not different, f"requests {different} of {count} have other tokens than alone"
    # A device sums up in another order when more are computed at once: it may choose another token where two are as good.
    noise = max(
        abs(one.logprob - other.logprob)
        for pair, length in zip(pairs, same, strict=True)
        for one, other in islice(zip(*pair, strict=True), length)
    )
    ties = [pairs[number][0][same[number]].lead for number in different]
    print(f"log-probabilities differ by up to {noise:.2g}; {len(ties)} of {count} answers part at ties, of {ties}")
    assert noise < MOST_NOISE and all(lead <= 2 * noise for lead in ties), (noise, different, ties)
    assert len(ties) < count / 10


def test_forty_streams_at_once(sturdy: RunningServer) -> None:
    """Five times as many as run at once."""
    with Watch(sturdy):
        asyncio.run(compare(sturdy.url, 40))


@pytest.mark.slow
def test_two_hundred_streams_at_once(tmp_path: Path) -> None:
    """All of them run at once."""
    with running(tmp_path, "--kv-cache-gb", "0.2", "--embedding-cache-gb", "0.05") as server, Watch(server):
        asyncio.run(compare(server.url, 200))


def test_clients_that_do_not_read_hold_up_nobody_and_are_cut_off(sturdy: RunningServer) -> None:
    """What is written to them waits in the server's memory. Red when it waits there for ever, say after the last byte."""
    stream = {**body(0), "n": 4, "max_tokens": 40, "top_logprobs": 20}
    whole = {**stream, "stream": False, "stream_options": None}
    with contextlib.ExitStack() as stack, Watch(sturdy):  # the idlers are still there when it looks at what is left
        for number in range(12):
            idler = stack.enter_context(socket.socket())
            idler.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            idler.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 536)  # or the system holds megabytes for the server
            idler.connect(("127.0.0.1", sturdy.port))
            idler.sendall(request(whole if number % 2 else stream))
        for _ in range(5):
            assert sturdy.chat().choices
