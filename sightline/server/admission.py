"""How much the unfinished requests hold in memory, within limits: bodies as they come in, then the media in them."""

import asyncio
import threading
from types import TracebackType

from starlette.types import Receive, Scope

from sightline.host_memory import give_freed_memory_back
from sightline.server.errors import ApiError, busy, too_large

Part = bytes | bytearray  # of a body
_MB = 1_000_000
UNREAD = "sightline.unread"  # the extension of a scope that has the parts of a body which nobody has read
_LARGE = 1 << 16  # bytes of a part that is not copied
_MUCH_FREED = 256 * _MB
_MOST_DIGITS = 18  # of a number of bytes; Python refuses to read one of thousands
_SLOWEST = 100_000  # bytes per second; a body that comes in slower has a limited time


class AdmissionBudget:
    def __init__(self, max_mb: float, max_requests: int) -> None:
        self._max_bytes, self._max_requests = int(max_mb * _MB), max_requests
        self.bytes = 0
        self.requests = 0
        self._most_bytes = 0  # since memory was last given back

    def open(self) -> "Entry":
        if self.requests >= self._max_requests:
            raise busy(f"The server is busy with {self.requests} requests, the most allowed (max_inflight_requests).")
        return Entry(self)

    def take(self, count: int) -> None:
        if self.bytes + count > self._max_bytes:
            raise busy(f"Requests in progress hold {self.bytes // _MB} MB, close to the most allowed (max_inflight_mb).")
        self.bytes += count
        self._most_bytes = max(self._most_bytes, self.bytes)

    def release_entry(self) -> None:
        """Bodies of many megabytes leave as much behind with the allocator, whose blocks lie between others; when nobody is
        held up by it, it goes back."""
        self.requests -= 1
        if not self.requests and self._most_bytes > _MUCH_FREED:
            self._most_bytes = 0
            threading.Thread(target=give_freed_memory_back, name="give memory back", daemon=True).start()


class Entry:
    """The share of one request, given back when the block ends."""

    def __init__(self, admission: AdmissionBudget) -> None:
        self._admission = admission
        self._bytes = 0

    def __enter__(self) -> "Entry":
        self._admission.requests += 1
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._admission.bytes -= self._bytes
        self._bytes = 0
        self._admission.release_entry()

    def grow(self, count: int) -> None:
        self._admission.take(count)
        self._bytes += count

    def settle(self, count: int) -> None:
        """What it holds from now on; a share may be larger than what its body was, where media were fetched."""
        if count > self._bytes:
            self._admission.take(count - self._bytes)
        else:
            self._admission.bytes -= self._bytes - count
        self._bytes = count


class ClientGone(Exception):
    """The client closed the connection before it had its answer."""


def add_part(parts: list[Part], part: Part) -> None:
    """Large parts stay as they are. Small ones are put together: each alone would take more memory than it brings."""
    if len(part) >= _LARGE:
        parts.append(part)
    elif parts and isinstance(parts[-1], bytearray):
        parts[-1] += part
    else:
        parts.append(bytearray(part))


async def read_body(scope: Scope, receive: Receive, entry: Entry, max_mb: float, timeout_s: float) -> list[Part]:
    """The whole body, in parts: to join them takes a thread. Stops reading where it grows too large, whatever its headers
    promised, or comes in too slowly.

    A body may take `timeout_s`, and longer as long as it comes in at a modest rate.
    """
    extension = scope.get("extensions", {}).get(UNREAD)  # of our own protocol; other servers put the body into messages
    unread: list[Part] = extension["parts"] if extension is not None else []
    parts: list[Part] = []
    size, begun = 0, asyncio.get_running_loop().time()
    try:
        async with asyncio.timeout(timeout_s) as limit:
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientGone
                if extension is None:
                    unread.append(message.get("body", b""))
                elif extension["is_lost"]:
                    raise MemoryError
                new = sum(map(len, unread))
                size += new
                if size > max_mb * _MB:
                    raise too_large(max_mb)
                entry.grow(new)
                for part in unread:
                    add_part(parts, part)
                unread.clear()
                if not message.get("more_body", False):
                    return parts
                limit.reschedule(begun + timeout_s + size / _SLOWEST)
    except TimeoutError:
        raise ApiError(408, f"The body did not come in within {timeout_s:g} s (body_timeout_s).") from None


def check_announced(length: str | None, max_mb: float) -> None:
    """Refuses a body by its Content-Length, before anything else is done for the request."""
    if length is not None:
        if not (length.isascii() and length.isdecimal()):
            raise ApiError(400, "Content-Length is not a number.")
        digits = length.lstrip("0")
        if len(digits) > _MOST_DIGITS or int(digits or "0") > max_mb * _MB:
            raise too_large(max_mb)
