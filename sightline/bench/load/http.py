"""A light HTTP/1.1 client whose clock is the moment at which bytes were read.

A benchmark with hundreds of streams must not measure itself. So a read only takes the time and puts the bytes aside; parsing
waits until every socket that was ready has been read. With a general client the last of 500 streams that tick together would be
stamped after 499 others had been parsed.
"""

import asyncio
import ssl
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast
from urllib.parse import urlsplit

import httptools

from sightline.errors import ConfigError

_IDLE_S = 2.0  # a connection unused for longer is not used again: servers close theirs after about 5 s
_KEPT_BYTES = 65536  # of an answer that nobody listens to, e.g. an error page

Listener = Callable[[float, bytes], None]  # when bytes of the body were read, and the bytes


class TransportError(Exception):
    """A request had no whole answer. `kind` groups such failures, the message tells more."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


@dataclass
class HttpReply:
    started: float  # when the request was handed to the client, as are all times: seconds of time.perf_counter()
    status: int = 0
    ended: float = 0.0
    body: bytearray = field(default_factory=bytearray)  # only without a listener, and for every status but 200


class Inbox:
    """What was read in one turn of the event loop, parsed at its end."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[tuple[_Connection, float, bytes | None]] = deque()

    def put(self, connection: "_Connection", stamp: float, data: bytes | None) -> None:
        if not self._waiting:
            self._loop.call_soon(self._parse)
        self._waiting.append((connection, stamp, data))

    def _parse(self) -> None:
        while self._waiting:
            connection, stamp, data = self._waiting.popleft()
            connection.take(stamp, data)


class _Connection(asyncio.Protocol):
    """One request at a time. What httptools finds in the bytes comes back through the on_… methods."""

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._reply: HttpReply | None = None
        self._done: asyncio.Future[HttpReply] | None = None
        self._listener: Listener | None = None
        self._stamp = 0.0
        self._length_known = False
        self.last_used = 0.0
        self.usable = True

    # ---- asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's has its methods, but is no subclass

    def data_received(self, data: bytes) -> None:
        self._inbox.put(self, time.perf_counter(), data)

    def connection_lost(self, error: Exception | None) -> None:
        self._inbox.put(self, time.perf_counter(), None)

    # ---- one request

    async def exchange(self, head: bytes, body: Sequence[bytes], reply: HttpReply, listener: Listener | None) -> HttpReply:
        if self._transport is None or self._transport.is_closing():
            raise TransportError("connection lost", "The server closed the connection.")
        self._reply, self._listener, self._length_known = reply, listener, False
        self._done = asyncio.get_running_loop().create_future()
        try:
            self._transport.writelines([head, *body])
            return await self._done
        except asyncio.CancelledError:
            self.close()
            raise
        finally:
            self._reply = self._done = self._listener = None
            if self._transport.get_write_buffer_size():
                self.usable = False  # answered before it had the whole request
            self.last_used = time.perf_counter()

    def close(self) -> None:
        self.usable = False
        if self._transport is not None:
            self._transport.abort()

    # ---- parsing

    def take(self, stamp: float, data: bytes | None) -> None:
        self._stamp = stamp
        if data is None:
            self.usable = False
            if self._reply is not None and self._reply.status and not self._length_known:
                self._finish()  # a body that ends with the connection
            else:
                where = "before it answered" if self._reply is None or not self._reply.status else "in the middle of its answer"
                self._fail(TransportError("connection lost", f"The server closed the connection {where}."))
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(TransportError("not HTTP", f"The server's answer is not HTTP: {error}."))
            self.close()

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() in (b"content-length", b"transfer-encoding"):
            self._length_known = True

    def on_headers_complete(self) -> None:
        if self._reply is not None:
            self._reply.status = self._parser.get_status_code()

    def on_body(self, data: bytes) -> None:
        if self._reply is None:
            return
        if self._listener is not None and self._reply.status == 200:
            self._listener(self._stamp, data)
        elif self._listener is None or len(self._reply.body) < _KEPT_BYTES:
            self._reply.body += data

    def on_message_complete(self) -> None:
        if self._parser.get_status_code() < 200:
            return  # "100 Continue" and its like: the answer is still to come
        self.usable = self.usable and self._parser.should_keep_alive()
        self._finish()

    def _finish(self) -> None:
        if self._done is not None and self._reply is not None and not self._done.done():
            self._reply.ended = self._stamp
            self._done.set_result(self._reply)

    def _fail(self, error: TransportError) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_exception(error)


class HttpClient:
    """Requests to one server, on connections that are kept and used again. To be made inside an event loop."""

    def __init__(self, base_url: str, headers: dict[str, str] | None = None, connect_timeout_s: float = 30.0) -> None:
        parts = urlsplit(base_url if "://" in base_url else f"http://{base_url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"The base URL {base_url!r} must have the form http://host:port or https://host.")
        try:
            self._port = parts.port or (443 if parts.scheme == "https" else 80)
        except ValueError:
            raise ConfigError(f"The base URL {base_url!r} has a port that is not a number from 0 to 65535.") from None
        self._host = parts.hostname
        self._prefix = parts.path.rstrip("/").removesuffix("/v1")
        self._ssl = ssl.create_default_context() if parts.scheme == "https" else None
        self._timeout = connect_timeout_s
        lines = {"host": parts.netloc.rpartition("@")[2], "accept": "*/*", "user-agent": "sightline-bench", **(headers or {})}
        self._headers = lines
        self._lines = _header_lines(lines)
        self._inbox = Inbox()
        self._idle: list[_Connection] = []

    async def request(
        self,
        method: str,
        path: str,
        body: Sequence[bytes] = (),
        listener: Listener | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> HttpReply:
        """Sends, and returns when the whole answer is there; a listener is told of its body as it comes.

        `headers` go over the client's own, by their names in small letters.
        """
        reply = HttpReply(time.perf_counter())
        connection = self._take_idle() or await self._connect()
        length = sum(len(piece) for piece in body)
        kind = f"content-type: application/json\r\ncontent-length: {length}\r\n" if method == "POST" else ""
        lines = self._lines if headers is None else _header_lines({**self._headers, **headers})
        head = f"{method} {self._prefix}{path} HTTP/1.1\r\n".encode() + lines + kind.encode() + b"\r\n"
        try:
            return await connection.exchange(head, body, reply, listener)
        finally:
            if connection.usable:
                self._idle.append(connection)
            else:
                connection.close()

    def _take_idle(self) -> _Connection | None:
        while self._idle:
            connection = self._idle.pop()  # the one used last, so that those too many grow old
            if connection.usable and time.perf_counter() - connection.last_used < _IDLE_S:
                return connection
            connection.close()
        return None

    async def _connect(self) -> _Connection:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._timeout):
                _, connection = await loop.create_connection(
                    lambda: _Connection(self._inbox), self._host, self._port, ssl=self._ssl
                )
        except TimeoutError:
            raise TransportError("no connection", f"No connection within {self._timeout:g} s.") from None
        except OSError as error:
            raise TransportError("no connection", f"No connection: {error.strerror or error}.") from None
        return connection

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()


def _header_lines(headers: Mapping[str, str]) -> bytes:
    for name, value in headers.items():
        if not (name + value).isascii() or any(character in name + value for character in "\r\n\0"):
            raise ConfigError(f"The header {name!r} has characters that a header cannot have.")
    return "".join(f"{name}: {value}\r\n" for name, value in headers.items()).encode()
