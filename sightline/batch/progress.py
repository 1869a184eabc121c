"""What a person sees of a batch while it runs: a bar on a terminal, a line now and then elsewhere."""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass

from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from sightline.server.observer import Observer, RequestRecord
from sightline.server.startup_log import StartupLog

_LOOK_S = 0.2  # of the bar
_LINE_S = 30.0  # between lines


@dataclass
class BatchTotals(Observer):
    """Of one run."""

    answered: int = 0
    failed: int = 0  # rows without an answer
    passed: int = 0  # rows that had one
    done_bytes: int = 0  # of the input
    prompt_tokens: int = 0
    completion_tokens: int = 0
    images: int = 0
    videos: int = 0
    begun: float = 0.0  # when the first row was read
    seconds: float = 0.0

    def request_finished(self, record: RequestRecord) -> None:
        if record.status == 200:
            self.prompt_tokens += record.prompt_tokens
            self.completion_tokens += record.completion_tokens
            self.images += record.images
            self.videos += record.videos

    @property
    def rate(self) -> float:
        """Rows per second."""
        seconds = self.seconds or time.perf_counter() - self.begun
        return (self.answered + self.failed) / seconds if seconds else 0.0

    def sentence(self) -> str:
        rows = [f"{self.answered:,} row{'s' * (self.answered != 1)} answered"]
        rows += [f"{self.failed:,} without an answer"] if self.failed else []
        rows += [f"{self.passed:,} answered before"] if self.passed else []
        return f"{', '.join(rows)}; {self.rate:.1f} per second"


@contextlib.asynccontextmanager
async def shown(totals: BatchTotals, size: int, log: StartupLog, level: int) -> AsyncIterator[None]:
    """`size`: bytes of the input."""
    if level > logging.INFO:
        yield
        return
    task = asyncio.create_task(_show_bar(totals, size, log) if log.is_terminal else _say_lines(totals, size, log))
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def _show_bar(totals: BatchTotals, size: int, log: StartupLog) -> None:
    columns = (BarColumn(), TaskProgressColumn(), TimeElapsedColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=log.console) as bar:
        task = bar.add_task("", total=size)
        try:
            while True:
                bar.update(task, completed=totals.done_bytes, description=totals.sentence())
                await asyncio.sleep(_LOOK_S)
        finally:
            bar.update(task, completed=totals.done_bytes, description=totals.sentence())


async def _say_lines(totals: BatchTotals, size: int, log: StartupLog) -> None:
    while True:
        await asyncio.sleep(_LINE_S)
        log.say(f"{100 * totals.done_bytes // max(1, size)} % of the file: {totals.sentence()}.")
