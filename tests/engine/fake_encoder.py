"""A server that encodes, or does not: an HTTP server in threads of the test's process, whose answers the test chooses."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec

from sightline.config import EncoderConfig
from sightline.engine.remote.client import RemoteEncoder
from sightline.engine.remote.wire import ITEM_BYTES, PROTOCOL, EncodeHead, Identity, RowsHead, pack, unpack
from sightline.types import ImageHeader, MediaItem, MediaRef, View

IDENTITY = Identity(protocol=PROTOCOL, tower="t" * 64, processor="p" * 64, dtype="float32", width=6)
PATIENCE_S = 20.0
Answer = tuple[int, bytes] | Callable[[Any], None]  # status and body, or whatever the handler's own connection is to see


def item(seed: int = 0, rows: int = 4) -> MediaItem:
    ref = MediaRef("image", bytes([seed]) * 50, bytes([seed]) * 32, ImageHeader("PNG", 64, 64, 1), f"picture {seed}")
    return MediaItem(ref, bytes([seed + 1]) * 32, (View.whole((64, 64)),), ((1, 4, 4),), (), (), rows)


def rows_of(asked: MediaItem, identity: Identity = IDENTITY, decoder: str = "cpu", **fields: Any) -> tuple[int, bytes]:
    """A right answer, but for `fields` of its head."""
    dtype = identity.dtype.split(" ")[0]
    size = asked.rows * identity.width * ITEM_BYTES[dtype]
    given = {"digest": asked.ref.digest, "dtype": dtype, "shape": (asked.rows, identity.width), **fields}
    return 200, pack(RowsHead(**given, decoder=decoder, seconds=0.0)) + bytes([asked.ref.digest[0]]) * size


class FakeEncoder:
    def __init__(self) -> None:
        self.identity: Identity | int = IDENTITY  # or the status of handshakes
        self.answer: Callable[[MediaItem, bytes], Answer] = lambda asked, data: rows_of(asked)
        self.asked: list[bytes] = []  # digests
        self.keys: list[str | None] = []
        self.lost: list[bytes] = []  # digests of requests whose client went away while they were held
        self.held = threading.Event()
        self.release = threading.Event()
        own = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *arguments: object) -> None: ...

            def do_GET(self) -> None:
                own.keys.append(self.headers.get("Authorization"))
                if isinstance(own.identity, int):
                    self.say(own.identity, b"{}")
                else:
                    self.say(200, msgspec.json.encode(own.identity))

            def do_POST(self) -> None:
                head, data = unpack(EncodeHead, self.rfile.read(int(self.headers["Content-Length"])))
                own.asked.append(head.item.ref.digest)
                answer = own.answer(head.item, bytes(data))
                if isinstance(answer, tuple):
                    self.say(*answer)
                else:
                    self.close_connection = True
                    answer(self)

            def say(self, status: int, body: bytes) -> None:
                with contextlib.suppress(OSError):
                    self.send_response(status)
                    self.send_header("Content-Length", str(len(body)))
                    self.end_headers()
                    self.wfile.write(body)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def hold(self, asked: MediaItem, data: bytes) -> Answer:
        """An answer that waits until the test releases it, or the client is gone."""

        def wait(handler: Any) -> None:
            self.held.set()
            handler.connection.setblocking(False)
            while not self.release.is_set():
                with contextlib.suppress(BlockingIOError):
                    if handler.connection.recv(1) == b"":
                        self.lost.append(asked.ref.digest)
                        return
                time.sleep(0.01)
            handler.connection.setblocking(True)
            handler.say(*rows_of(asked))

        return wait

    def close(self) -> None:
        self.release.set()
        self._server.shutdown()
        self._server.server_close()


@contextlib.contextmanager
def asking(
    fake: FakeEncoder, memory_bytes: int = 1 << 20, own: Identity = IDENTITY, **settings: Any
) -> Iterator[RemoteEncoder]:
    config = EncoderConfig(encoder_url=fake.url, **{"encoder_connections": 2, "encoder_timeout_s": 5.0, **settings})
    remote = RemoteEncoder(config, own, memory_bytes, lambda: None)
    remote.start()
    try:
        yield remote
    finally:
        remote.close()


def until(found: Callable[[], Any], what: str) -> Any:
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        value = found()
        if value:
            return value
        time.sleep(0.005)
    raise AssertionError(f"waited {PATIENCE_S:g} s for {what}")
