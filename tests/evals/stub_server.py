"""An OpenAI-style server of a few lines, which says what a test tells it to say, on a real socket."""

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

StubReply = tuple[int, Any]  # status, and JSON or bytes


def completion(text: str | None, reason: str = "stop") -> StubReply:
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": reason}
    return 200, {"choices": [choice], "usage": {"prompt_tokens": 7, "completion_tokens": 2}}


def stream(*chunks: dict[str, Any]) -> StubReply:
    """These events; a chunk of text is {"text": …}, and its end {"reason": …}."""
    events = []
    for chunk in chunks:
        if "text" in chunk or "reason" in chunk:
            delta = {"content": chunk["text"]} if "text" in chunk else {}
            chunk = {"choices": [{"index": 0, "delta": delta, "finish_reason": chunk.get("reason")}]}
        events.append(json.dumps(chunk))
    return 200, "".join(f"data: {event}\n\n" for event in (*events, "[DONE]")).encode()


def error(status: int, message: str) -> StubReply:
    return status, {"error": {"message": message, "type": "invalid_request_error", "code": status}}


class StubServer:
    """`answer` gets the body of each chat request; `models` are what /v1/models lists."""

    def __init__(self, answer: Callable[[dict[str, Any]], StubReply], models: tuple[str, ...] = ("stub",)) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.most_at_once = 0
        self._at_once = 0
        self._lock = threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                outer.keys.append(self.headers.get("Authorization"))
                listed = {"object": "list", "data": [{"id": name, "object": "model"} for name in models]}
                self._reply((200, listed) if self.path == "/v1/models" else error(404, f"no {self.path}"))

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                if self.path != "/v1/chat/completions":
                    self._reply(error(404, f"no {self.path}"))
                    return
                with outer._lock:
                    outer.bodies.append(body)
                    outer._at_once += 1
                    outer.most_at_once = max(outer.most_at_once, outer._at_once)
                try:
                    reply = answer(body)
                finally:
                    with outer._lock:
                        outer._at_once -= 1
                self._reply(reply)

            def _reply(self, reply: StubReply) -> None:
                status, content = reply
                encoded = content if isinstance(content, bytes) else json.dumps(content).encode()
                self.send_response(status)
                self.send_header("Content-Type", "text/event-stream" if encoded.startswith(b"data:") else "application/json")
                self.send_header("Content-Length", str(len(encoded)))
                self.end_headers()
                with contextlib.suppress(OSError):
                    self.wfile.write(encoded)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1"
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@contextlib.contextmanager
def stub(answer: Callable[[dict[str, Any]], StubReply], models: tuple[str, ...] = ("stub",)) -> Iterator[StubServer]:
    server = StubServer(answer, models)
    try:
        yield server
    finally:
        server.close()
