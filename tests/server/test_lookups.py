"""URLs whose names never resolve, as a server is sent them."""

import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from media.web import serving
from server import names_server
from server.media import text_part
from server.running import RunningServer, running
from server.test_errors import error_of

TIMEOUT_S = 3.0


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    flags = ("--allow-private-media", "--allowed-media-ports", "--fetch-timeout-s", str(TIMEOUT_S), "--kv-cache-gb", "0.1")
    with running(tmp_path, *flags, program=(names_server.__file__,)) as made:
        yield made


def ask(server: RunningServer, *urls: str) -> httpx.Response:
    parts = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    return server.post(messages=[{"role": "user", "content": [*parts, text_part("What?")]}], max_tokens=1)


def test_names_that_never_resolve_stop_nobody_else(server: RunningServer) -> None:
    """Forty requests for such names, three in each. Red when a good name gets no place while they last, or after: the threads
    of the sixteen first were never free again. And the server ends when it is told to."""
    with serving() as site, ThreadPoolExecutor(40) as pool:
        good = f"http://good.example:{site.server_port}/jpeg"
        bad = [pool.submit(ask, server, *(f"http://never-{n}-{m}.example/" for m in range(3))) for n in range(40)]
        time.sleep(0.5)
        for _ in range(3):  # at the beginning, in the middle, and when all of them have been given up
            assert ask(server, good).status_code == 200
            time.sleep(TIMEOUT_S / 2)
        for refused in bad:
            assert f"longer than {TIMEOUT_S:g} s" in error_of(refused.result(), 400)["message"]
        assert ask(server, good).status_code == 200
    began = time.monotonic()
    assert server.stop(signal.SIGTERM) == 0
    assert time.monotonic() - began < 10
