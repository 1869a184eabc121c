"""One HTTP connection to a server that runs the tower: a request at a time, from one thread."""

import contextlib
import http.client
import json
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar
from urllib.parse import urlsplit

import msgspec

from sightline.engine.remote.wire import (
    CONTENT_TYPE,
    ENCODE,
    HANDSHAKE,
    LENGTH_BYTES,
    EncodeHead,
    Identity,
    RowsHead,
    WireError,
    check_rows,
    head_length,
    pack,
    read_head,
    rows_bytes,
)
from sightline.errors import MediaError
from sightline.types import MediaItem

T = TypeVar("T")
_CONNECT_S = 3.0
_HANDSHAKE_S = 10.0
_MOST_HEAD = 65536  # bytes of an answer beside its rows
_MOST_SENTENCE = 300
_LONGEST_REFUSAL = 65536


class Away(Exception):
    """The other server does not answer; the text is a clause."""


class Refused(Exception):
    """It answers, but not to us, or not with what we need; the text is a clause."""


class Busy(Exception):
    """It has too much to do."""


class Wrong(Exception):
    """Its answer is not what it should be; the text is a clause."""


@dataclass(frozen=True)
class Received:
    head: RowsHead
    rows: bytes


class Connection:
    def __init__(self, url: str, key: str | None, timeout_s: float) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None
        self._prefix = parts.path.rstrip("/")
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._http: http.client.HTTPConnection = kind(parts.hostname, parts.port, timeout=_CONNECT_S)
        self._timeout_s = timeout_s
        self._headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        self._used = False  # a request went well on it; the other may have closed it since
        self._socket: socket.socket | None = None
        self._interrupted = False

    def meet(self) -> Identity:
        """Raises Away or Refused."""
        status, said, body = self._exchange("GET", HANDSHAKE, [], min(self._timeout_s, _HANDSHAKE_S), _whole)
        if body is None:
            raise self._refusal(status, said)
        try:
            return msgspec.json.decode(body, type=Identity)
        except msgspec.DecodeError as error:
            raise Refused(f"what that server says of itself cannot be read: {error}") from None

    def encode(self, item: MediaItem, other: Identity, deadline: float) -> Received:
        """Raises MediaError where the item cannot be encoded, or Away, Refused, Busy, Wrong."""
        head = pack(EncodeHead(other.name, item.without_bytes()))
        left = max(0.01, deadline - time.monotonic())
        taken = partial(_answer, item, other)
        status, said, answer = self._exchange("POST", ENCODE, [head, item.ref.data], left, taken)
        if answer is not None:
            return answer
        if status in (400, 413, 422):
            raise MediaError(_sentence(said) or f"The encoder refused {item.ref.source} with status {status}.")
        if status == 429:
            raise Busy
        if status == 500:
            raise Wrong(f"it failed ({_sentence(said) or 'status 500'})")
        raise self._refusal(status, said)

    def _refusal(self, status: int, body: bytes) -> Exception:
        said = _sentence(body)
        if status in (401, 403):
            return Refused(f"that server does not accept encoder_api_key (status {status})")
        if status in (404, 405):
            return Refused(f"that server is none with --encoder-only (status {status})")
        if status == 409:
            return Refused(said.rstrip(".") or "that server has another tower now")
        return Away(f"it answers with status {status}" + (f" ({said.rstrip('.')})" if said else ""))

    def _exchange(
        self, method: str, path: str, body: list[bytes], timeout_s: float, take: Callable[[http.client.HTTPResponse], T]
    ) -> tuple[int, bytes, T | None]:
        """The status, what an error says, and what `take` makes of an answer that is none. A connection that was closed while
        nothing was asked is opened again, once."""
        self._interrupted = False
        while True:
            reused, self._used = self._used, False
            try:
                answer = self._one_exchange(method, path, body, timeout_s, take)
                self._used = True
                return answer
            except (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError) as error:
                self.close()
                if self._interrupted:
                    raise Away(f"it did not answer within {self._timeout_s:.3g} s") from None
                if not reused:
                    raise Away(_reason(error)) from None
            except TimeoutError:
                self.close()
                raise Away(f"it did not answer within {timeout_s:.3g} s") from None
            except (http.client.HTTPException, OSError) as error:
                self.close()
                raise Away(_reason(error)) from None
            except BaseException:
                self.close()
                raise

    def _one_exchange(
        self, method: str, path: str, body: list[bytes], timeout_s: float, take: Callable[[http.client.HTTPResponse], T]
    ) -> tuple[int, bytes, T | None]:
        if self._http.sock is None:
            self._http.connect()
        self._socket = self._http.sock
        self._socket.settimeout(timeout_s)
        headers = {**self._headers, "Content-Length": str(sum(map(len, body)))} if body else dict(self._headers)
        if body:
            headers["Content-Type"] = CONTENT_TYPE
        self._http.request(method, self._prefix + path, iter(body) if body else None, headers)
        response = self._http.getresponse()
        said, taken = b"", None
        if response.status == 200:
            taken = take(response)
        elif response.length is None or response.length <= _LONGEST_REFUSAL:
            said = response.read(_LONGEST_REFUSAL)
        if not response.isclosed():  # there is more than was read
            self.close()
        return response.status, said, taken

    def interrupt(self) -> None:
        """From another thread: what is asked is given up."""
        self._interrupted = True
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._socket = None
        self._used = False
        self._http.close()


def _whole(response: http.client.HTTPResponse) -> bytes:
    return _exactly(response, _length_within(response, _LONGEST_REFUSAL))


def _answer(item: MediaItem, other: Identity, response: http.client.HTTPResponse) -> Received:
    """The rows are read straight into what is handed on: nobody copies megabytes."""
    length = _length_within(response, rows_bytes(item, other) + _MOST_HEAD)
    try:
        head_bytes = head_length(_exactly(response, min(length, LENGTH_BYTES)), length)
        head = read_head(RowsHead, _exactly(response, head_bytes))
        check_rows(head, length - LENGTH_BYTES - head_bytes, item, other)
    except WireError as error:
        raise Wrong(str(error)) from None
    return Received(head, _exactly(response, length - LENGTH_BYTES - head_bytes))


def _length_within(response: http.client.HTTPResponse, most: int) -> int:
    if response.length is None or response.length > most:
        raise Wrong(f"it would have {'an unknown number of' if response.length is None else response.length} bytes")
    return response.length


def _exactly(response: http.client.HTTPResponse, count: int) -> bytes:
    found = response.read(count)
    if len(found) < count:
        raise http.client.IncompleteRead(found, count - len(found))
    return found


def _reason(error: Exception) -> str:
    if isinstance(error, http.client.IncompleteRead):
        return f"the connection broke in the middle of an answer, after {len(error.partial)} bytes"
    if isinstance(error, http.client.RemoteDisconnected):
        return "it closed the connection"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror[0].lower() + error.strerror[1:]
    return f"its answer is not HTTP ({type(error).__name__})"


def _sentence(body: bytes) -> str:
    """What an error of a server of ours says."""
    with contextlib.suppress(ValueError, KeyError, TypeError):
        said = json.loads(body)["error"]["message"]
        return "".join(character for character in str(said) if character.isprintable())[:_MOST_SENTENCE]
    return ""
