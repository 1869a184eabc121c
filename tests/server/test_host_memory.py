"""A server whose process gets no more memory says so, in time for the client to come back: 503, and nothing stays lost."""

import contextlib
import json
import resource
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from server.running import RunningServer
from server.test_errors import error_of

HELLO = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1}
LARGE = 150_000_000
SPARE = 48 << 20  # bytes that the process may still take


@contextlib.contextmanager
def hardly_any_memory(pid: int) -> Iterator[None]:
    size = int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.prlimit(pid, resource.RLIMIT_AS)
    resource.prlimit(pid, resource.RLIMIT_AS, (size + SPARE, before[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_AS, before)


@pytest.mark.skipif(sys.platform != "linux", reason="limits of another process are Linux's")
def test_a_body_for_which_there_is_no_memory(server: RunningServer) -> None:
    """While it comes in. Red when it is called bad HTTP (400), or when the client cannot read why it is refused."""
    body = json.dumps({**HELLO, "messages": [{"role": "user", "content": "x" * LARGE}]}).encode()
    with hardly_any_memory(server.process.pid):
        response = server.http.post("/v1/chat/completions", content=body)
        assert error_of(response, 503)["code"] == "out_of_memory" and int(response.headers["retry-after"]) > 0
        assert server.http.get("/health").status_code == 200
        assert server.post(**HELLO).status_code == 200
    assert server.until_idle()["inflight_bytes"] == 0
    assert "Traceback" not in server.errors, server.errors[-3000:]
