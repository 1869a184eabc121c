"""A web server on the loopback interface that misbehaves on request, and an internet that leads to it."""

import http.server
import ssl
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import httpcore
import pytest

from media.pictures import encoded, exif, picture
from sightline.config import MediaConfig

JPEG = encoded(picture(), "JPEG", exif=exif(6))
LOCAL = MediaConfig(allow_private_media=True, allowed_media_ports=())  # lets the server here be fetched from


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, address: str = "127.0.0.1", port: int = 0) -> None:
        super().__init__((address, port), _Handler)
        self.asked: list[tuple[str, str]] = []  # (Host header, path) of each request
        self.connections = 0
        self.sent = 0  # bytes of the endless body

    def url(self, path: str, host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.server_port}/{path}"


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def setup(self) -> None:
        self.server.connections += 1
        super().setup()

    def do_GET(self) -> None:
        self.server.asked.append((self.headers["Host"], self.path))
        name = self.path.partition("?")[0].strip("/").split("/")
        getattr(self, f"_{name[0]}", self._missing)(*name[1:])

    def log_message(self, *_: object) -> None:
        pass

    def _answer(self, status: int, **headers: str) -> None:
        self.send_response(status)
        for header, value in headers.items():
            self.send_header(header.replace("_", "-"), value)
        self.end_headers()

    def _missing(self, *_: str) -> None:
        self._answer(404)
        self.wfile.write(b"SECRET of an internal service")

    def _jpeg(self) -> None:
        self._answer(200, Content_Length=str(len(JPEG)))
        self.wfile.write(JPEG)

    def _endless(self) -> None:
        self._answer(200)
        try:
            while self.server.sent < 500_000_000:
                self.server.sent += self.wfile.write(bytes(65536))
        except OSError:
            pass

    def _announced(self, size: str) -> None:
        self._answer(200, Content_Length=size)
        self.wfile.write(JPEG)

    def _packed(self, how: str) -> None:
        self._answer(200, Content_Encoding=how)
        self.wfile.write(JPEG)

    def _hop(self, left: str) -> None:
        self._answer(302, Location=f"/hop/{int(left) - 1}" if int(left) else "/jpeg")

    def _loop(self) -> None:
        self._answer(307, Location="/loop")

    def _to(self, host: str, *path: str) -> None:
        """A redirect to another host, on this server's port unless the host names one."""
        place = host if host.startswith("[") or ":" in host else f"{host}:{self.server.server_port}"
        self._answer(301, Location=f"http://{place}/{'/'.join(path)}")

    def _tofile(self) -> None:
        self._answer(301, Location="file:///etc/passwd")

    def _nowhere(self) -> None:
        self._answer(302)

    def _headers(self) -> None:
        """A header that goes on and on."""
        try:
            self.wfile.write(b"HTTP/1.1 200 OK\r\nX: ")
            while self.server.sent < 500_000_000:
                self.server.sent += self.wfile.write(b"x" * 65536)
        except OSError:
            pass

    def _silent(self) -> None:
        time.sleep(2)

    def _trickle(self, part: str) -> None:
        """One byte of a header or a body now and then, so that no single read times out."""
        try:
            self.wfile.write(b"HTTP/1.1 200 OK\r\nX: " if part == "header" else b"HTTP/1.1 200 OK\r\n\r\n")
            for _ in range(40):
                self.wfile.write(b"x")
                time.sleep(0.05)
        except OSError:
            pass


@contextmanager
def serving(address: str = "127.0.0.1", port: int = 0, tls: ssl.SSLContext | None = None) -> Iterator[Server]:
    made = Server(address, port)
    if tls is not None:
        made.socket = tls.wrap_socket(made.socket, server_side=True, do_handshake_on_connect=False)
    thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield made
    finally:
        made.shutdown()
        thread.join()
        made.server_close()


class Names:
    """A resolver with answers of its own; a name with several answers gives one after another, the last for ever."""

    def __init__(self, answers: Mapping[str, Sequence[Sequence[str]]]) -> None:
        self._answers = {name: list(given) for name, given in answers.items()}
        self.asked: list[str] = []

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        self.asked.append(host)
        if host not in self._answers:
            raise OSError(f"nobody knows {host}")
        given = self._answers[host]
        return given.pop(0) if len(given) > 1 else given[0]


def pretend_internet(monkeypatch: pytest.MonkeyPatch, server: Server, *public: str) -> list[str]:
    """Connections to these addresses reach `server`, others fail. Returns the addresses that were dialled, as they come."""
    dialled: list[str] = []
    dial = httpcore.AnyIOBackend.connect_tcp

    async def connect_tcp(self: httpcore.AnyIOBackend, host: str, port: int, **options: object) -> object:
        dialled.append(host)
        if host not in public:
            raise httpcore.ConnectError(f"{host} is not part of this internet")
        return await dial(self, "127.0.0.1", server.server_port, **options)

    monkeypatch.setattr(httpcore.AnyIOBackend, "connect_tcp", connect_tcp)
    return dialled
