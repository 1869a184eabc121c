"""How late this process itself is: a client that is busy reads answers late and blames the server."""

import asyncio
import time
from dataclasses import dataclass

import numpy as np

_EVERY_S = 0.005
LIMIT_MS = 5.0  # above this at P99, figures of single tokens are the client's as much as the server's


@dataclass(frozen=True)
class Lag:
    """Milliseconds by which the event loop was late, and the share of a core that it used."""

    median: float
    p99: float
    max: float
    own_p99: float  # of it, what the client's own work took; the rest is other programs on the same cores
    cpu: float

    @property
    def is_bottleneck(self) -> bool:
        return self.own_p99 > LIMIT_MS

    @property
    def is_crowded(self) -> bool:
        return self.p99 > LIMIT_MS


class LagMeter:
    """Asks to be called every few milliseconds and notes how much later it was.

    A standstill of 50 ms hides the calls that were due within it, so each of them is counted, too, with what was left of it. A
    delay is the client's own as far as its thread was computing since the last call.
    """

    def __init__(self) -> None:
        self._late: list[float] = []
        self._own: list[float] = []
        self._task: asyncio.Task[None] | None = None
        self._began = 0.0
        self._cpu_began = 0.0

    def start(self) -> None:
        self._began, self._cpu_began = time.perf_counter(), time.thread_time()
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        while True:
            before, cpu_before = time.perf_counter(), time.thread_time()
            await asyncio.sleep(_EVERY_S)
            cpu = time.thread_time() - cpu_before
            self.add(time.perf_counter() - before - _EVERY_S, cpu)

    def add(self, late: float, cpu: float) -> None:
        """One call that was so late, and the processor time of this thread since the last one, both in seconds."""
        _add_with_hidden(self._late, late)
        _add_with_hidden(self._own, min(late, cpu))

    def stop(self) -> Lag:
        if self._task is not None:
            self._task.cancel()
        if not self._late:
            return Lag(0.0, 0.0, 0.0, 0.0, 0.0)
        median, p99 = np.percentile(self._late, (50, 99))
        return Lag(
            median=1000 * float(median),
            p99=1000 * float(p99),
            max=1000 * max(self._late),
            own_p99=1000 * float(np.percentile(self._own, 99)),
            cpu=(time.thread_time() - self._cpu_began) / (time.perf_counter() - self._began),
        )


def _add_with_hidden(samples: list[float], late: float) -> None:
    samples.append(max(0.0, late))
    while (late := late - _EVERY_S) > 0:
        samples.append(late)
