"""A small real HTTP server that answers as OpenAI-style servers do, by script: what to send, and how long to wait before.

Runs in a thread of a test, or as a program of its own: `python tests/bench/stub.py CHUNKS SECONDS` prints its port and answers
every question with so many chunks, so many seconds apart.
"""

import asyncio
import json
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

MODEL = "stub-model"


@dataclass(frozen=True)
class Script:
    """One answer. Each piece is sent as one HTTP chunk after its pause; `None` cuts the connection."""

    pieces: Sequence[tuple[float, bytes | None]]
    status: int = 200
    kind: str = "text/event-stream"


def event(value: Any) -> bytes:
    return b"data: " + (value if isinstance(value, bytes) else json.dumps(value).encode()) + b"\n\n"


def chunk(delta: dict[str, Any] | None, finish: str | None = None, **fields: Any) -> bytes:
    choices = [] if delta is None else [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}]
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1700000000, "model": MODEL}
    return event({**head, "choices": choices, **fields})


def usage(prompt: int, completion: int, cached: int | None = None, image: int | None = None) -> dict[str, Any]:
    details = {"cached_tokens": cached, "image_tokens": image}
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": details if cached is not None or image is not None else None,
    }


def stream(pauses: Sequence[float], told: dict[str, Any] | None, role_first: float | None = None) -> Script:
    """A chunk with one word after each pause, the reason to end in the last; then usage, then [DONE]."""
    pieces: list[tuple[float, bytes | None]] = []
    if role_first is not None:
        pieces.append((role_first, chunk({"role": "assistant", "content": ""})))
    for number, pause in enumerate(pauses):
        pieces.append((pause, chunk({"content": f"w{number} "}, "length" if number == len(pauses) - 1 else None)))
    if told is not None:
        pieces.append((0.0, chunk(None, usage=told)))
    return Script([*pieces, (0.0, event(b"[DONE]"))])


def refusal(status: int, message: str, pause: float = 0.0) -> Script:
    error = {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": None}}
    return Script([(pause, json.dumps(error).encode())], status, "application/json")


def whole(pause: float, text: str, told: dict[str, Any]) -> Script:
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    body = {"id": "chatcmpl-1", "object": "chat.completion", "model": MODEL, "choices": [choice], "usage": told}
    return Script([(pause, json.dumps(body).encode())], kind="application/json")


@dataclass
class Seen:
    """One request as it came."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    arrived: float


@dataclass
class Stub:
    """Answers the n-th question with the n-th script, and begins again when they are used up; or with what `choose` says."""

    scripts: Sequence[Script] = ()
    choose: Callable[[dict[str, Any]], Script] | None = None  # from the body of the question
    owner: str = "stub"
    tokens_per_word: int | None = None  # None: no /tokenize
    port: int = 0
    seen: list[Seen] = field(default_factory=list)
    most_at_once: int = 0
    _now: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def questions(self) -> list[Seen]:
        return [one for one in self.seen if one.path == "/v1/chat/completions"]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                first, *lines = head.strip().split("\r\n")
                method, path, _ = first.split()
                headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                self.seen.append(Seen(path, headers, json.loads(body) if body else {}, time.perf_counter()))
                await self._answer(method, path, writer)
        except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _answer(self, method: str, path: str, writer: asyncio.StreamWriter) -> None:
        if path == "/v1/models":
            script = Script([(0.0, json.dumps({"data": [{"id": MODEL, "owned_by": self.owner}]}).encode())])
        elif path == "/tokenize" and self.tokens_per_word is not None:
            count = len(self.seen[-1].body["prompt"].split()) * self.tokens_per_word
            script = Script([(0.0, json.dumps({"count": count}).encode())])
        elif method == "POST" and path == "/v1/chat/completions":
            number = len(self.questions) - 1
            script = self.choose(self.seen[-1].body) if self.choose else self.scripts[number % len(self.scripts)]
        else:
            script = refusal(404, f"There is no {path}.")
        self._now += 1
        self.most_at_once = max(self.most_at_once, self._now)
        try:
            await play(script, writer)
        finally:
            self._now -= 1


async def play(script: Script, writer: asyncio.StreamWriter) -> None:
    head = f"HTTP/1.1 {script.status} Reason\r\ncontent-type: {script.kind}\r\ntransfer-encoding: chunked\r\n\r\n".encode()
    for pause, data in script.pieces:
        if pause:
            await asyncio.sleep(pause)
        if data is None:
            writer.write(head)
            writer.transport.abort()
            raise ConnectionError
        writer.write(head + f"{len(data):x}\r\n".encode() + data + b"\r\n")
        head = b""
        await writer.drain()
    writer.write(b"0\r\n\r\n")
    await writer.drain()


class RunningStub:
    """A stub in a thread of its own: `with RunningStub(...) as stub`."""

    def __init__(self, *scripts: Script, **settings: Any) -> None:
        self.stub = Stub(scripts, **settings)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)

    def __enter__(self) -> Stub:
        self._thread.start()
        self._server = asyncio.run_coroutine_threadsafe(
            asyncio.start_server(self.stub.serve, "127.0.0.1", limit=1 << 26), self._loop
        ).result()
        self.stub.port = self._server.sockets[0].getsockname()[1]
        return self.stub

    def __exit__(self, *error: object) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _stop(self) -> None:
        self._server.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _run_alone(chunks: int, seconds: float) -> None:
    stub = Stub([stream([seconds] * chunks, usage(10, chunks))])
    server = await asyncio.start_server(stub.serve, "127.0.0.1", backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    import uvloop

    uvloop.run(_run_alone(int(sys.argv[1]), float(sys.argv[2])))
