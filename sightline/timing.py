"""Seconds per stage of a request, on the host's clock."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager


class StageClock:
    """Adds up how long each named stage took, on top of what is known already."""

    def __init__(self, seconds: Mapping[str, float] | None = None) -> None:
        self.seconds: dict[str, float] = dict(seconds or {})

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.add(name, time.perf_counter() - start)

    def advance(self) -> None:
        """The stage in progress advances: for clocks that watch over it."""

    def add(self, name: str, seconds: float) -> None:
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds
