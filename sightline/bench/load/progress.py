"""Bars on the terminal, drawn rarely and from the event loop: drawing in a thread would hold up the reading of answers."""

import sys
import time
from collections import deque
from contextlib import AbstractContextManager
from types import TracebackType

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from sightline.bench.load.request_result import RequestResult

_EVERY_S = 0.5
_RECENT = 100  # answers that the live figures are taken over


class Bar(AbstractContextManager["Bar"]):
    """A bar on standard error; nothing where that is not a terminal."""

    def __init__(self, title: str, total: int, shown: bool = True) -> None:
        console = Console(stderr=True)
        self._shown = shown and console.is_terminal and sys.stderr.isatty()
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[note]}"),
            console=console,
            auto_refresh=False,
            disable=not self._shown,
        )
        self._task = self._progress.add_task(title, total=total, note="")
        self._total = total
        self._done = 0
        self._drawn = 0.0
        self._failed = 0
        self._ttfts: deque[float] = deque(maxlen=_RECENT)

    def __enter__(self) -> "Bar":
        self._progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._draw()
        self._progress.stop()

    def set(self, done: int) -> None:
        self._done = done
        if self._shown and (time.monotonic() - self._drawn > _EVERY_S or done == self._total):
            self._draw()

    def begun(self, answer: RequestResult) -> None:
        if answer.ttft is not None:
            self._ttfts.append(answer.ttft)
        self.set(self._done)

    def take(self, answer: RequestResult) -> None:
        self._failed += answer.failure is not None
        self.set(self._done + 1)

    def _draw(self) -> None:
        self._drawn = time.monotonic()
        notes = []
        if self._ttfts:
            median, p99 = 1000 * np.percentile(self._ttfts, (50, 99))
            notes.append(f"TTFT median {median:.0f} ms, P99 {p99:.0f} ms")
        if self._failed:
            notes.append(f"{self._failed} failed")
        self._progress.update(self._task, completed=self._done, note=", ".join(notes))
        self._progress.refresh()
