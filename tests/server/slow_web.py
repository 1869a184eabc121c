"""A web server that sends the first part of a file and then nothing, until it is told to go on."""

import contextlib
import http.server
import threading
from collections.abc import Iterator


class SlowWeb(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, data: bytes, first: int) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.data, self.first = data, first
        self.go_on = threading.Event()
        self.waiting = 0  # clients that have had the first part and wait for the rest
        self.hung_up = 0  # those that left meanwhile
        self.lock = threading.Lock()

    def url(self, number: int = 0) -> str:
        return f"http://127.0.0.1:{self.server_port}/{number}"


class _Handler(http.server.BaseHTTPRequestHandler):
    server: SlowWeb

    def do_GET(self) -> None:
        web = self.server
        self.send_response(200)
        self.send_header("Content-Length", str(len(web.data)))
        self.end_headers()
        self.wfile.write(web.data[: web.first])
        with web.lock:
            web.waiting += 1
        self.connection.settimeout(0.02)
        left = False
        while not web.go_on.is_set() and not left:
            with contextlib.suppress(TimeoutError):
                try:
                    left = not self.connection.recv(1)
                except ConnectionError:
                    left = True
        with web.lock:
            web.waiting -= 1
            web.hung_up += left
        if not left:
            self.connection.settimeout(None)
            self.wfile.write(web.data[web.first :])

    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def slow_web(data: bytes, first: int) -> Iterator[SlowWeb]:
    web = SlowWeb(data, first)
    thread = threading.Thread(target=web.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield web
    finally:
        web.go_on.set()
        web.shutdown()
        thread.join()
        web.server_close()
