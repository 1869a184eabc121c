"""uvicorn's HTTP protocol with what a server on a network needs besides: limits on headers in time and size, on what follows a
refusal, OpenAI's shape for what is not HTTP at all, and plain HTTP/1.1 for clients that offer to go on with HTTP/2.

A request that comes before the answer to the one before it ("pipelined") waits, and what comes behind it is held back unread.

A connection always waits for something that has an end: the headers of a request, its body (read_body has the clock of most),
an answer (request_timeout_s), the client to read what is written (read_timeout_s), or, between requests, uvicorn's keep-alive
time.
"""

import asyncio
import select
from typing import Any, cast

import httptools
import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from sightline.server.body import MOST_UNREAD, UNREAD, Unread, add_part
from sightline.server.errors import ApiError, out_of_memory

MAX_HEADER_BYTES = 64 * 1024
MOST_PIPELINED = 1000  # requests that wait for the answers before theirs; hardly any client sends two
LINGER_S = 10.0  # how long a client may go on sending a body that has been refused: it reads the answer only then
_ABSENCE_LOOK_S = 0.5  # between looks whether a client is still there that waits in line
_CLOSED = getattr(select, "POLLRDHUP", 0)  # resets and errors are told in any case
_STATUS = {400: "Bad Request", 408: "Request Timeout", 431: "Request Header Fields Too Large", 503: "Service Unavailable"}


def http_protocol(header_timeout_s: float, read_timeout_s: float) -> type[asyncio.Protocol]:
    """The protocol class for uvicorn's configuration."""

    class GuardedProtocol(_GuardedProtocol):
        header_timeout = header_timeout_s
        read_timeout = read_timeout_s

    return GuardedProtocol


def has_left(socket: int) -> bool:
    """Whether the other end has closed the connection, as far as the kernel knows: what has come in before hides nothing."""
    watch = select.poll()
    watch.register(socket, _CLOSED)
    return bool(watch.poll(0))


def _unread_of(cycle: RequestResponseCycle) -> Unread:
    return cast(Unread, cast(Any, cycle.scope)["extensions"][UNREAD])


class _GuardedProtocol(HttpToolsProtocol):
    header_timeout: float
    read_timeout: float

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._timer: asyncio.TimerHandle | None = None
        self._reader_timer: asyncio.TimerHandle | None = None
        self._absence_timer: asyncio.TimerHandle | None = None
        self._header_bytes: int | None = 0  # received since the last request; None while a body comes in
        self._trailer_bytes: int | None = None  # received since the head of a chunk, if nothing of the chunk has come yet
        self._field_bytes = 0  # of the headers and trailers of a request that are complete, however they came in
        self._has_begun = False  # a request whose headers are not complete
        self._current: RequestResponseCycle | None = None  # the request being answered; self.cycle, the newest, may wait
        self._held = bytearray()  # what came behind a later request; it is read on, so that a client that leaves is noticed
        self._is_broken = False  # what comes in is not understood any more
        self._closes = False  # the client wants the connection closed, but its body has not come to its end
        self._declines_upgrade = False  # the request at hand has a body, which the parser would take for another protocol

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._arm(self.header_timeout, self._too_slow)

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        self._forget_reader()
        if self._absence_timer is not None:
            self._absence_timer.cancel()
        for cycle in filter(None, (self._current, self.cycle)):
            left = _unread_of(cycle).left
            if left is not None and not left.done():
                left.set_result(None)
        self.pipeline.clear()
        self._held.clear()
        if self._current is not None and not self._current.response_complete:
            self._current.disconnected = True
            self._current.message_event.set()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._is_broken:
            return
        if self._must_wait():
            self._held += data
            if len(self._held) > MAX_HEADER_BYTES:
                self.flow.pause_reading()
            return
        if self._header_bytes is not None:
            self._header_bytes += len(data)
        if self._trailer_bytes is not None:
            self._trailer_bytes += len(data)
        self._unset_keepalive_if_required()
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError as error:
            if isinstance(error.__context__, MemoryError):
                self._lose_body()
            elif self._field_bytes <= MAX_HEADER_BYTES:
                self.send_400_response("The request is not valid HTTP.")
        except httptools.HttpParserUpgrade as upgrade:
            if self._declines_upgrade:
                self._again_without_upgrade(data[upgrade.args[0] :])
        if self.transport.is_closing() or self._is_broken:
            return
        self._leave_unread()
        if max(self._header_bytes or 0, self._trailer_bytes or 0, self._field_bytes) > MAX_HEADER_BYTES:
            self._refuse(ApiError(431, f"The headers have more than the {MAX_HEADER_BYTES} bytes allowed."))
        elif self._timer is None and (self.cycle is None or self.cycle.response_complete):
            # What came begins no request, say an empty line or the rest of a body that was refused, and has stopped the
            # keep-alive time.
            self._arm(self.header_timeout, self.transport.close)

    def _leave_unread(self) -> None:
        """A body for which there may be no room yet stays where it is, and who reads it goes on (read_body)."""
        body_goes_on = self._header_bytes is None and self._current is self.cycle and not self.cycle.response_complete
        if body_goes_on and not _unread_of(self.cycle).is_wanted:
            self.flow.pause_reading()
            if self._absence_timer is None:
                self._absence_timer = self.loop.call_later(_ABSENCE_LOOK_S, self._look_for_absence)

    def _look_for_absence(self) -> None:
        """Nobody reads, so nobody is told that the client has left."""
        self._absence_timer = None
        if self.transport.is_closing() or not self.flow.read_paused:
            return
        if has_left(self.transport.get_extra_info("socket").fileno()):
            self.transport.abort()
        else:
            self._absence_timer = self.loop.call_later(_ABSENCE_LOOK_S, self._look_for_absence)

    def _lose_body(self) -> None:
        """There is no memory for what comes in. Who reads the body is told, and answers; the rest of it is not looked at."""
        if self._header_bytes is not None or self.cycle is None or self.cycle.response_complete:
            self._refuse(out_of_memory())
            return
        unread = _unread_of(self.cycle)
        unread.parts.clear()
        unread.is_lost = self._is_broken = self._closes = True
        self.cycle.message_event.set()

    def _again_without_upgrade(self, rest: bytes) -> None:
        """The same request to a fresh parser, without the header that made the old one stop before the body."""
        method, headers = self.parser.get_method(), self.headers
        lines = [b"%s %s HTTP/1.1" % (method, self.url), *(b"%s: %s" % pair for pair in headers if pair[0] != b"upgrade")]
        self._declines_upgrade = False
        self.parser = httptools.HttpRequestParser(self)
        self.data_received(b"\r\n".join(lines) + b"\r\n\r\n" + rest)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        cast(Any, self.scope)["extensions"] = {UNREAD: Unread(left=self.loop.create_future())}
        self._field_bytes = 0
        self._has_begun = True
        if not self._is_answering():  # else nothing may be read until that is done
            self._arm(self.header_timeout, self._too_slow)

    def on_url(self, url: bytes) -> None:
        self._count_field(len(url))
        super().on_url(url)

    def _count_field(self, count: int) -> None:
        """Ends the parsing of what is too large, however much of it came at once."""
        self._field_bytes += count
        if self._field_bytes > MAX_HEADER_BYTES:
            raise ValueError("too many bytes of headers")

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count_field(len(name) + len(value) + 4)  # and ": " and the end of the line
        if self._header_bytes is not None:  # else it stands behind a body, and nobody reads it
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self.transport.is_closing():
            return
        self._disarm()
        self._has_begun = False
        has_body = any(name in (b"content-length", b"transfer-encoding") for name, _ in self.headers)
        is_tunnel = self.parser.get_method() == b"CONNECT"  # which is an upgrade with and without such a header
        self._declines_upgrade = self.parser.should_upgrade() and has_body and not is_tunnel
        if not self._declines_upgrade:
            waits = self._is_answering()
            super().on_headers_complete()
            self._header_bytes = None
            if not waits:
                self._current = self.cycle
            elif len(self.pipeline) > MOST_PIPELINED:
                self.transport.close()
            else:
                self.flow.resume_reading()  # _held has a limit
            # A connection that is closed while a body comes in is reset, and the client may never see why it was refused.
            self._closes = has_body and not self.cycle.keep_alive
            self.cycle.keep_alive = self.cycle.keep_alive or self._closes

    def on_body(self, body: bytes) -> None:
        """As uvicorn's, with more room: within its 64 kB a picture comes in many turns of the event loop. It would also copy
        each part three times; read_body, who reads all bodies, finds the parts in the scope."""
        self._trailer_bytes = None
        if self.cycle.response_complete:
            return
        unread = _unread_of(self.cycle)
        add_part(unread.parts, body)
        if sum(map(len, unread.parts)) > MOST_UNREAD:
            self.flow.pause_reading()
        self.cycle.message_event.set()

    def on_chunk_header(self) -> None:
        self._trailer_bytes = 0

    def on_message_complete(self) -> None:
        self._trailer_bytes = None
        if self._declines_upgrade or self.transport.is_closing():
            return
        self._header_bytes = 0
        self._disarm()
        super().on_message_complete()
        if self._closes:
            self._closes = self.cycle.keep_alive = False
            if self.cycle.response_complete:
                self.transport.close()

    def on_response_complete(self) -> None:
        body_goes_on = self._header_bytes is None and self._current is self.cycle
        if body_goes_on and not self.transport.is_closing():
            self._arm(LINGER_S, self.transport.close)
            if self._closes:
                self.transport.write_eof()
        self._current = self.pipeline[-1][0] if self.pipeline else None
        super().on_response_complete()
        self._watch_reader()
        if self._must_wait() or self.transport.is_closing():
            return
        if self._has_begun:
            self._arm(self.header_timeout, self._too_slow)
        if self._held:
            held = bytes(self._held)
            self._held.clear()
            self.data_received(held)

    def _is_answering(self) -> bool:
        return self._current is not None and not self._current.response_complete

    def _must_wait(self) -> bool:
        """Whether a request is there that waits for the answer before its own."""
        return self._is_answering() and (bool(self.pipeline) or self._has_begun)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_reader()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._forget_reader()

    def _forget_reader(self) -> None:
        if self._reader_timer is not None:
            self._reader_timer.cancel()
            self._reader_timer = None

    def _watch_reader(self) -> None:
        """What has been written waits in memory until the client reads it, even after close(): that has an end, too."""
        waiting = self.transport.get_write_buffer_size()
        if waiting and self._reader_timer is None:
            self._reader_timer = self.loop.call_later(self.read_timeout, self._check_reader, waiting)

    def _check_reader(self, before: int) -> None:
        self._reader_timer = None
        if self.transport.get_write_buffer_size() < before:
            self._watch_reader()
        else:
            self.transport.abort()

    def send_400_response(self, msg: str) -> None:
        self._refuse(ApiError(400, msg, code="invalid_http"))

    def _too_slow(self) -> None:
        if not self.transport.is_closing():
            self._refuse(ApiError(408, f"The headers did not come in within {self.header_timeout:g} s (header_timeout_s)."))

    def _refuse(self, error: ApiError) -> None:
        """Says why, and closes the connection; but not in the middle of an answer, nor instead of an earlier request's."""
        self._is_broken = True
        if self._current is not None and self._is_answering():
            if self._current is not self.cycle or self._has_begun:  # an earlier request, which gets its answer
                self.pipeline.clear()
                self._current.keep_alive = False
                return
            is_first = not self._current.response_started
        else:
            is_first = self._header_bytes is not None  # else the body of a request that was answered goes on
        if is_first:
            body = msgspec.json.encode(error.body())
            head = f"HTTP/1.1 {error.status} {_STATUS[error.status]}\r\ncontent-type: application/json\r\n"
            self.transport.write(f"{head}content-length: {len(body)}\r\nconnection: close\r\n\r\n".encode() + body)
        self.transport.close()

    def _arm(self, seconds: float, action: Any) -> None:
        self._disarm()
        self._timer = self.loop.call_later(seconds, action)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
