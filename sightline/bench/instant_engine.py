"""An engine process that computes nothing, to measure what is around one: `python -m sightline.bench.instant_engine MS URL`.

It speaks the messages of engine/process.py and answers every request with as many tokens as it asks for, all of them " a". With
MS above 0 it takes steps as an engine does, one token for everybody each MS milliseconds, one message per step.
"""

import os
import sys
import time
from dataclasses import dataclass

import zmq

from sightline.engine.kept_files import KeptFiles
from sightline.engine.messages import (
    Abort,
    Add,
    Done,
    Finish,
    Flush,
    Memory,
    News,
    Ping,
    Ready,
    Start,
    Stats,
    Stop,
    UpdateHead,
    decode_command,
    encode,
    request_of,
)

_POLL_MS = 500


@dataclass
class _Answer:
    wanted: int
    prompt_tokens: int
    seconds: dict[str, float]
    given: int = 0


class InstantEngine:
    def __init__(self, socket: "zmq.SyncSocket", files: KeptFiles) -> None:
        self._socket, self._files = socket, files
        self._answers: dict[int, _Answer] = {}

    @property
    def has_work(self) -> bool:
        return bool(self._answers)

    def take_commands(self) -> bool:
        """All that have come. False: one was the order to stop."""
        while self._socket.poll(0):
            head, *frames = self._socket.recv_multipart(copy=False)
            message = decode_command(head.buffer)
            if isinstance(message, Add):
                prompt = request_of(message, [frame.buffer for frame in frames], self._files)
                self._answers[message.number] = _Answer(message.sampling.max_tokens, len(prompt), message.seconds)
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
                finish = Finish("length", answer.prompt_tokens, answer.given, 0, 0, 0, answer.seconds)
                del self._answers[number]
            updates.append(UpdateHead(number, 0, " a", (64,), (), finish))
        self._socket.send(encode(News(tuple(updates))))


def _no_stats() -> Stats:
    return Stats(**dict.fromkeys(Stats.__struct_fields__, 0))


def serve(socket: "zmq.SyncSocket", step_s: float) -> int:
    first = decode_command(socket.recv())
    assert isinstance(first, Start)
    socket.send(encode(Ready("none", "none", 1 << 20, Memory(0, 0, 0, 0, 0, 0), {})))
    engine = InstantEngine(socket, KeptFiles(first.config.server.kept_media_bytes))
    parent, due = os.getppid(), 0.0
    while os.getppid() == parent:
        left_s = due - time.perf_counter()
        if not engine.has_work:
            socket.poll(_POLL_MS)
        elif left_s > 0:
            time.sleep(left_s)
        if not engine.take_commands():
            return 0
        now = time.perf_counter()
        if engine.has_work and now >= due:
            engine.step()
            due = now + step_s
    return 1


def main() -> int:
    context = zmq.Context()
    socket = context.socket(zmq.PAIR)
    for option in (zmq.SNDHWM, zmq.RCVHWM):
        socket.setsockopt(option, 0)
    socket.connect(sys.argv[2])
    try:
        return serve(socket, float(sys.argv[1]) / 1e3)
    finally:
        socket.close(linger=0)
        context.term()


if __name__ == "__main__":
    sys.exit(main())
