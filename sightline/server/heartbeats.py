"""The heartbeats of one engine process, and the judgement whether it hangs.

Two signals (engine/liveness.py), each judged by `engine_timeout_s`: no heartbeat for so long, also of an idle engine; or a
heartbeat which says that the current step, or stage of the start, has not advanced for so long. A request that waits is no
signal: its image may take long to decode.
"""

import asyncio
import socket
import time
from collections.abc import Callable

from sightline.engine.messages import Heartbeat, decode_heartbeat

_LARGEST_BYTES = 4096


class Heartbeats:
    """Made on the event loop, before the process is; `clock` gives seconds."""

    def __init__(self, timeout_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._timeout_s, self._clock = timeout_s, clock
        self.last = Heartbeat("start of the process", 0.0)
        self._heard = self._judged = clock()
        # Datagrams: whole or not at all, so that a full buffer costs a heartbeat and nothing else.
        self._socket, self._far_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._socket, self._read)

    @property
    def file(self) -> int:
        """The end that the process is to inherit."""
        return self._far_end.fileno()

    def handed_over(self) -> None:
        """The process has been started."""
        self._far_end.close()

    @property
    def work_age_s(self) -> float:
        """Of the current step or stage, since it began or last advanced; 0 where there is none."""
        return 0.0 if self.last.idle else self.last.seconds

    @property
    def interval_s(self) -> float:
        """How often to judge."""
        return min(0.5, self._timeout_s / 4)

    def hang(self) -> str | None:
        """Says which signal has been missing for how long, once it has been for more than engine_timeout_s."""
        self._read()  # what came while this process was busy
        now, limit = self._clock(), self._timeout_s
        if now - self._judged > limit / 2:  # this process was stopped, and perhaps the engine with it: it gets another chance
            self._heard = now
        self._judged = now
        silence = now - self._heard
        if silence > limit:
            return f"no heartbeat for {silence:.1f} s (engine_timeout_s is {limit:g}), the last one at {self.last.what!r}"
        age = self.work_age_s
        if age > limit:
            return f"no progress for {age:.1f} s (engine_timeout_s is {limit:g}) at {self.last.what!r}, with heartbeat"
        return None

    def _read(self) -> None:
        while True:
            try:
                message = self._socket.recv(_LARGEST_BYTES)
            except OSError:  # nothing more, or nobody there
                return
            self.last, self._heard = decode_heartbeat(message), self._clock()

    def close(self) -> None:
        self._loop.remove_reader(self._socket)
        self._socket.close()
        self._far_end.close()
