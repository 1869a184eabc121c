"""Bodies of requests: announced, given room, and only then read, in parts."""

import asyncio
from dataclasses import dataclass, field

from starlette.datastructures import Headers
from starlette.types import Receive, Scope

from sightline.server.admission import MB, ClientGone, Entry
from sightline.server.errors import ApiError, too_large

Part = bytes | bytearray
UNREAD = "sightline.unread"  # the extension of a scope that has what nobody has read of a body
MOST_UNREAD = 1 << 20  # bytes of a body that wait for their reader; more stay in the kernel
_LARGE = 1 << 16  # bytes of a part that is not copied
_MOST_DIGITS = 18  # of a number of bytes; Python refuses to read one of thousands
_SLOWEST = 100_000  # bytes per second; a body that comes in slower has a limited time


@dataclass(eq=False)
class Unread:
    """Of a body; http_protocol.py puts the parts here as they come in."""

    parts: list[Part] = field(default_factory=list)
    is_wanted: bool = False  # there is room for it; until then no more is taken from the connection than came with the headers
    is_lost: bool = False  # for want of memory
    left: "asyncio.Future[None] | None" = None  # done when the client has closed the connection


def add_part(parts: list[Part], part: Part) -> None:
    """Large parts stay as they are. Small ones are put together: each alone would take more memory than it brings."""
    if len(part) >= _LARGE:
        parts.append(part)
    elif parts and isinstance(parts[-1], bytearray):
        parts[-1] += part
    else:
        parts.append(bytearray(part))


def announced_length(headers: Headers, max_mb: float) -> int | None:
    """How long the body will be; None: nobody knows. Refuses it if it is too long, before anything else is done for it."""
    length = headers.get("content-length")
    if length is None:
        return None if "transfer-encoding" in headers else 0
    if not (length.isascii() and length.isdecimal()):
        raise ApiError(400, "Content-Length is not a number.")
    digits = length.lstrip("0") or "0"
    if len(digits) > _MOST_DIGITS or int(digits) > max_mb * MB:
        raise too_large(max_mb)
    return int(digits)


async def read_body(
    scope: Scope, receive: Receive, entry: Entry, announced: int | None, max_mb: float, timeout_s: float
) -> list[Part]:
    """The whole body, in parts: to join them takes a thread. Stops reading where it grows too large, whatever its headers
    promised, or comes in too slowly.

    It is read when there is room for it. From then on it may take `timeout_s`, and longer as long as it comes in at a modest
    rate; waits for more room do not count.
    """
    unread: Unread | None = scope.get("extensions", {}).get(UNREAD)
    in_messages = unread is None  # of another server's protocol, such as Ray Serve's
    unread = unread or Unread()
    most = int(max_mb * MB)
    step = min(MOST_UNREAD, most, entry.most // 8)  # of a body whose length nobody knows
    await (entry.grow(step, most, unread.left) if announced is None else entry.reserve(announced, unread.left))
    unread.is_wanted = True
    parts: list[Part] = []
    loop = asyncio.get_running_loop()
    size, begun, waited = 0, loop.time(), entry.waited_s
    try:
        async with asyncio.timeout(timeout_s) as limit:
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientGone
                if in_messages:
                    unread.parts.append(message.get("body", b""))
                if unread.is_lost:
                    raise MemoryError
                size += sum(map(len, unread.parts))
                if size > most:
                    raise too_large(max_mb)
                if size > entry.bytes:
                    limit.reschedule(None)
                    await entry.grow(max(size - entry.bytes, min(step, entry.most - entry.bytes)), most, unread.left)
                for part in unread.parts:
                    add_part(parts, part)
                unread.parts.clear()
                if not message.get("more_body", False):
                    entry.settle(size)
                    return parts
                limit.reschedule(begun + entry.waited_s - waited + timeout_s + size / _SLOWEST)
    except TimeoutError:
        raise ApiError(408, f"The body did not come in within {timeout_s:g} s (body_timeout_s).") from None
