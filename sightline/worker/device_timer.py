"""How long the device worked on something, without waiting for it."""

import time
from types import TracebackType

import torch


class DeviceTimer:
    """Times what is between start and stop, or a `with` block. On a GPU by events in its queue: `seconds` waits for the
    last, if nobody else has."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._host = 0.0
        if self._cuda:
            self._start, self._end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def start(self) -> None:
        if self._cuda:
            self._start.record()
        else:
            self._host = -time.perf_counter()

    def stop(self) -> None:
        if self._cuda:
            self._end.record()
        else:
            self._host += time.perf_counter()

    def __enter__(self) -> "DeviceTimer":
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    @property
    def seconds(self) -> float:
        if not self._cuda:
            return self._host
        self._end.synchronize()  # what was read of the block may have been ready a moment before its end
        return float(self._start.elapsed_time(self._end)) / 1000
