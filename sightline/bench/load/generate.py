"""Sends prepared requests when they are due, so many at once as are allowed, and collects the answers."""

import asyncio
import gc
import time
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol

from sightline.bench.load.lag import Lag, LagMeter
from sightline.bench.load.request_result import RequestResult
from sightline.bench.load.target import Target

Body = Sequence[bytes]


class Watcher(Protocol):
    """Is told of each answer when it begins and when it is whole."""

    def begun(self, answer: RequestResult) -> None: ...

    def take(self, answer: RequestResult) -> None: ...


def _ignore(answer: RequestResult) -> None:
    pass


@dataclass(frozen=True)
class LoadResult:
    answers: list[RequestResult]  # in the order of the requests
    began: float
    duration: float  # seconds from the first start to the last answer
    lag: Lag


async def generate_load(
    target: Target,
    bodies: Sequence[Body],
    arrivals: Sequence[float],
    max_concurrency: int | None,
    stream: bool,
    watcher: Watcher | None = None,
) -> LoadResult:
    answers: list[RequestResult | None] = [None] * len(bodies)
    room: AbstractAsyncContextManager[object] = asyncio.Semaphore(max_concurrency) if max_concurrency else nullcontext()
    meter = LagMeter()
    tasks: set[asyncio.Task[None]] = set()
    gc.collect()
    gc.freeze()  # what was prepared is not looked at again while the clock runs
    meter.start()
    began = time.perf_counter()

    async def send(index: int) -> None:
        async with room:
            answer = await target.ask(bodies[index], stream, began + arrivals[index], watcher.begun if watcher else _ignore)
        answers[index] = answer
        if watcher is not None:
            watcher.take(answer)

    try:
        for index, due in enumerate(arrivals):
            await asyncio.sleep(max(0.0, began + due - time.perf_counter()))  # also lets others run between two starts
            task = asyncio.create_task(send(index))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        while tasks:
            await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        duration = time.perf_counter() - began
        lag = meter.stop()
        gc.unfreeze()
    return LoadResult([answer for answer in answers if answer is not None], began, duration, lag)
