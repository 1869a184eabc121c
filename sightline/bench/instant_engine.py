"""An engine process that computes nothing, to measure what is around one: `python -m sightline.bench.instant_engine MS`,
followed by the arguments that engine/link.py names.

It speaks the messages of engine/process.py, heartbeats too, and answers every request with as many tokens as it asks for, all
of them " a". With MS above 0 it takes steps as an engine does, one token for everybody each MS milliseconds, one message per
step.
"""

import sys
import time
from dataclasses import dataclass

import zmq

from sightline.engine.file_cache import FileCache
from sightline.engine.link import Link, connected
from sightline.engine.messages import (
    Abort,
    Add,
    Done,
    Finish,
    Flush,
    MemoryReport,
    News,
    Ping,
    Ready,
    Stats,
    Stop,
    UpdateHead,
    decode_command,
    encode,
    submission_of,
)


@dataclass
class _InstantOutput:
    wanted: int
    prompt_tokens: int
    seconds: dict[str, float]
    given: int = 0


class InstantEngine:
    def __init__(self, socket: "zmq.SyncSocket", files: FileCache) -> None:
        self._socket, self._files = socket, files
        self._answers: dict[int, _InstantOutput] = {}

    @property
    def has_work(self) -> bool:
        return bool(self._answers)

    def take_commands(self) -> bool:
        """All that have come. False: one was the order to stop."""
        while self._socket.poll(0):
            message = decode_command(*(frame.buffer for frame in self._socket.recv_multipart(copy=False)))
            if isinstance(message, Add):
                asked = submission_of(message, self._files)
                self._answers[message.number] = _InstantOutput(asked.sampling.max_tokens, len(asked.request), asked.seconds)
            elif isinstance(message, Abort):
                self._answers.pop(message.number, None)
            elif isinstance(message, Flush | Ping):
                if isinstance(message, Flush):
                    self._files.clear()
                self._socket.send(encode(_no_stats()))
                self._socket.send(encode(Done(message.number)))
            elif isinstance(message, Stop):
                return False
        return True

    def step(self) -> None:
        updates = []
        for number, answer in list(self._answers.items()):
            answer.given += 1
            finish = None
            if answer.given == answer.wanted:
                finish = Finish("length", answer.prompt_tokens, answer.seconds)
                del self._answers[number]
            updates.append(UpdateHead(number, 0, " a", (64,), (), finish))
        self._socket.send(encode(News(tuple(updates))))


def _no_stats() -> Stats:
    return Stats(**(dict.fromkeys(Stats.__struct_fields__, 0) | {"pages": 1}))


def serve(link: Link, step_s: float) -> int:
    socket, liveness, due = link.commands, link.liveness, 0.0
    start = link.receive_start()
    socket.send(encode(Ready("none", "none", 1 << 20, MemoryReport(0, 0, 0, 0, 0, 0), {})))
    engine = InstantEngine(socket, FileCache(start.config.server.kept_media_bytes))
    while True:
        liveness.idle()
        left_s = due - time.perf_counter()
        if not engine.has_work:
            socket.poll()
        elif left_s > 0:
            time.sleep(left_s)
        liveness.begin("step")
        if not engine.take_commands():
            return 0
        now = time.perf_counter()
        if engine.has_work and now >= due:
            engine.step()
            due = now + step_s


def main() -> int:
    step_ms, *link_arguments = sys.argv[1:]
    with connected(link_arguments) as link:
        return serve(link, float(step_ms) / 1e3)


if __name__ == "__main__":
    sys.exit(main())
