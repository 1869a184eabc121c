"""Fetching over http(s): how much and how long. Every refusal by its sentence."""

import asyncio
import dataclasses
import socket
import threading
import time
from collections.abc import Iterator, Sequence

import pytest

from media.fetching import get, refused
from media.web import JPEG, LOCAL, Server, serving
from sightline.config import MediaConfig
from sightline.errors import MediaError
from sightline.media.fetch import fetch_async
from sightline.media.limits import ByteAllowance, RequestBudget


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as made:
        yield made


# Red if the limit acts only when the body is complete: the endless one would send 500 MB.
def test_size_limit_acts_while_the_body_arrives(server: Server) -> None:
    limits = dataclasses.replace(LOCAL, max_image_mb=1)
    with pytest.raises(MediaError, match=r"^Image X has more than the 1 MB allowed \(--max-image-mb\)\.$"):
        get(server.url("endless"), limits)
    assert server.sent < 50_000_000
    with pytest.raises(MediaError, match=r"^Image X has 3000\.0 MB, more than the 1 MB allowed \(--max-image-mb\)\.$"):
        get(server.url("announced/3000000000"), limits)


# Red if a header without end is taken in.
def test_headers_have_a_limit(server: Server) -> None:
    refused(server.url("headers"), "the answer of its host is not valid HTTP.", LOCAL)
    assert server.sent < 50_000_000


# Red if a fetch that nobody waits for any more goes on.
def test_a_cancelled_fetch_ends(server: Server) -> None:
    async def cancel() -> None:
        limits = dataclasses.replace(LOCAL, max_image_mb=5000)
        task = asyncio.create_task(fetch_async(server.url("endless"), limits, ByteAllowance("image", "X", limits)))
        while server.sent == 0:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel())
    sent = -1
    while server.sent != sent:
        sent = server.sent
        time.sleep(0.5)
    assert sent < 500_000_000


# Red if items that arrive at once are counted only when each is complete.
def test_the_request_has_a_limit_too(server: Server) -> None:
    limits = dataclasses.replace(LOCAL, max_request_media_mb=2)
    budget = RequestBudget(limits)

    async def both() -> None:
        await asyncio.gather(
            *(fetch_async(server.url("endless"), limits, ByteAllowance("image", "X", limits, budget)) for _ in range(3))
        )

    with pytest.raises(MediaError, match=r"have more than the 2 MB allowed together \(--max-request-media-mb\)\.$"):
        asyncio.run(both())
    assert server.sent < 50_000_000


# Red if the time limit starts anew with every byte: the trickle would go on for two seconds and end otherwise.
@pytest.mark.parametrize("path", ["silent", "trickle/header", "trickle/body"])
def test_time_limit(path: str, server: Server) -> None:
    refused(server.url(path), "it took longer than 0.3 s (--fetch-timeout-s).", dataclasses.replace(LOCAL, fetch_timeout_s=0.3))


# Red if a name server that does not answer holds up more than its own request, or the limit leaves it out.
def test_time_limit_on_looking_up_names() -> None:
    async def never(host: str, port: int) -> Sequence[str]:
        await asyncio.sleep(3600)
        return []

    refused("http://slow.example/", "it took longer than 0.2 s (--fetch-timeout-s).", MediaConfig(fetch_timeout_s=0.2), never)


# Red if a body that was packed unasked is passed on, or unpacked without a limit.
def test_packed_bodies(server: Server) -> None:
    refused(server.url("packed/gzip"), "the server sent it with Content-Encoding 'gzip'.", LOCAL)
    assert get(server.url("packed/identity"), LOCAL) == JPEG


# Red if what a server inside says, or where it is, comes out in the sentence.
def test_sentences_tell_nothing_of_the_inside(server: Server) -> None:
    refused(server.url("nothing"), "the server answered with status 404.", LOCAL)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        refused(f"http://127.0.0.1:{free.getsockname()[1]}/", "no connection could be made to its host.", LOCAL)
    refused(server.url(f"announced/{len(JPEG) + 10}"), "the answer of its host is not valid HTTP.", LOCAL)


def test_a_host_that_speaks_something_else() -> None:
    listener = socket.create_server(("127.0.0.1", 0))

    def speak() -> None:
        for greeting in (b"SSH-2.0-OpenSSH_9.9 internal-host-17\r\n", b""):
            connection, _ = listener.accept()
            connection.sendall(greeting)
            connection.close()

    thread = threading.Thread(target=speak)
    thread.start()
    url = f"http://127.0.0.1:{listener.getsockname()[1]}/"
    for _ in range(2):
        with pytest.raises(
            MediaError,
            match=r"^Image X cannot be fetched: the (answer of its host is not valid HTTP|connection to its host broke)\.$",
        ):
            get(url, LOCAL)
    thread.join()
    listener.close()
