"""Seconds per stage of a request, on the host's clock."""

import time
from collections.abc import Iterator
from contextlib import contextmanager


class StageClock:
    """Adds up how long each named stage took."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.add(name, time.perf_counter() - start)

    def add(self, name: str, seconds: float) -> None:
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds
