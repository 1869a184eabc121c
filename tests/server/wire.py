"""HTTP by hand, for what no client library would send."""

import contextlib
import http.client
import json
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from server.running import PATIENCE_S, RunningServer

CHAT = "/v1/chat/completions"


@dataclass(frozen=True)
class WireResponse:
    status: int
    headers: dict[str, str]  # names in lower case
    body: bytes

    def error(self) -> dict[str, Any]:
        """The error in it, which must have OpenAI's shape."""
        error = json.loads(self.body)["error"]
        assert set(error) == {"message", "type", "param", "code"} and error["message"] and error["type"], error
        return dict(error)


@contextlib.contextmanager
def connection(server: RunningServer, timeout: float = PATIENCE_S) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", server.port), timeout=timeout) as made:
        yield made


def abandon(client: socket.socket) -> None:
    """Closes with a reset, as a process that is killed with unread data does; plain close() says goodbye first."""
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()


def head(*headers: str, method: str = "POST", path: str = CHAT) -> bytes:
    return "\r\n".join([f"{method} {path} HTTP/1.1", "Host: localhost", *headers, "", ""]).encode("latin-1")


def request(body: bytes | dict[str, Any], *headers: str, path: str = CHAT) -> bytes:
    """A whole request, its length announced."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return head(f"Content-Length: {len(data)}", *headers, path=path) + data


def read_answer(client: socket.socket, method: str = "POST") -> WireResponse:
    response = http.client.HTTPResponse(client, method=method)
    response.begin()
    return WireResponse(response.status, {name.lower(): value for name, value in response.getheaders()}, response.read())


class WireResponses:
    """One answer after another from a connection, also where the next has begun to come in with the one before."""

    def __init__(self, client: socket.socket) -> None:
        self._file = client.makefile("rb")

    def next(self, method: str = "POST") -> WireResponse:
        return read_answer(self, method)  # type: ignore[arg-type]

    def makefile(self, *_: Any) -> "WireResponses":
        return self

    def close(self) -> None:
        """Called at the end of an answer; the next one comes from the same file."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def exchange(server: RunningServer, data: bytes) -> WireResponse:
    """Sends bytes on a connection of their own; what comes back."""
    with connection(server) as client:
        with contextlib.suppress(ConnectionError):  # the answer may come, and the connection close, before all is sent
            client.sendall(data)
        return read_answer(client)


def is_closed(client: socket.socket) -> bool:
    """Reads to the end. False: the server kept the connection for as long as the socket's time-out."""
    try:
        while client.recv(65536):
            pass
    except TimeoutError:
        return False
    except ConnectionError:
        pass
    return True
