"""A request to one of the server's endpoints from within its process, without a socket: what came of it.

The endpoint does all that it does for a client: the same checks, the same prompt, the same answer.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import msgspec
from starlette.types import ASGIApp, Message

from sightline.server.admission import UNREAD, Part
from sightline.server.errors import ApiError

_RETRY_S = 1.0


class _Details(msgspec.Struct):
    message: str = ""
    code: str | None = None
    param: str | None = None


class _ErrorBody(msgspec.Struct):
    error: _Details


_decoder = msgspec.json.Decoder(_ErrorBody)


@dataclass(frozen=True)
class RowAnswer:
    status: int
    request_id: str
    body: bytes
    retry_after_s: float = _RETRY_S

    def error(self) -> _Details:
        """Of one whose status is not 200."""
        return _decoder.decode(self.body).error


async def ask(endpoint: ASGIApp, url: str, body: list[Part], on_taken: Callable[[], None]) -> RowAnswer:
    """`on_taken` is called when the endpoint has room for the body and takes its parts, or is done without them."""
    gone = asyncio.Event()
    taken, status, parts = False, 0, list[bytes]()
    headers: dict[bytes, bytes] = {}

    async def receive() -> Message:
        nonlocal taken
        if not taken:
            taken = True
            on_taken()
            return {"type": "http.request", "more_body": False}
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]
            headers.update(message["headers"])
            if headers.get(b"content-type", b"").startswith(b"text/event-stream"):
                gone.set()
        elif not gone.is_set():
            parts.append(message["body"])

    scope = {
        "type": "http",
        "method": "POST",
        "path": url,
        "headers": [(b"content-length", b"%d" % sum(map(len, body)))],
        "extensions": {UNREAD: {"parts": body, "is_lost": False}},
    }
    try:
        await endpoint(scope, receive, send)
    finally:
        on_taken()
    task = asyncio.current_task()
    if task is not None and task.cancelling():  # which the endpoint has taken for the end of the server
        raise asyncio.CancelledError
    request_id = headers.get(b"x-request-id", b"").decode()
    if gone.is_set():
        error = ApiError(
            400, "Field 'stream' is true, but a batch has whole answers.", param="stream", code="unsupported_value"
        )
        return RowAnswer(error.status, request_id, msgspec.json.encode(error.body(url)))
    later = float(headers.get(b"retry-after", b"0")) or _RETRY_S
    return RowAnswer(status, request_id, b"".join(parts), later)
