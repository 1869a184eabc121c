"""Several engines, each with the whole model, as one: requests go where their images already are (server/routing.py).

An engine that dies is left out until it is back; of its requests those whose clients have been told nothing go to others, once.
"""

import asyncio
import logging
import operator
from collections.abc import AsyncIterator, Callable, Sequence

import msgspec

from sightline.config import Config
from sightline.engine.messages import LoadProgress, Ready, Stats, UpdateHead
from sightline.server.engine_client import ENGINE_COMMAND, EngineClient, EngineGone, EngineState, UpdateQueue
from sightline.server.errors import unavailable
from sightline.server.gpus import gpus_of_engines
from sightline.server.observer import Observer
from sightline.server.routing import affinity_key, choose
from sightline.submission import Submission

log = logging.getLogger("sightline.engine")


class RoutedAnswers:
    """News of the prompts of one HTTP request, which one of the engines answers. Must be released in the end."""

    def __init__(
        self, group: "EngineGroup", prompts: Sequence[Submission], begin_again: Callable[[], None] | None = None
    ) -> None:
        self._group, self._begin_again = group, begin_again
        # What it takes to ask another engine: until the first news, or to the end if the asker can begin again.
        self.prompts: Sequence[Submission] = prompts
        self.engine, self.queue = group.route(prompts)

    async def batches(self) -> AsyncIterator[list[tuple[int, UpdateHead]]]:
        moved = told = False
        while True:
            try:
                async for batch in self.queue.batches():
                    if self._begin_again is None:
                        self.prompts = ()
                    told = True
                    yield batch
                return
            except EngineGone:
                if moved or not self.prompts:
                    raise
                moved = True
                engine, queue = self._group.route(self.prompts)  # may find nobody: then the asker releases what is gone
                self.release()
                self.engine, self.queue, self.prompts = engine, queue, ()
                if told and self._begin_again is not None:
                    self._begin_again()

    def release(self) -> None:
        """The asker is done with this engine: what has not ended, it ends before its next step."""
        self._group.note_end(self.engine)
        self.queue.release()


class EngineGroup:
    def __init__(
        self,
        config: Config,
        observer: Observer,
        on_progress: Callable[[LoadProgress], None],
        on_ready: Callable[[Ready], None],
        on_failed: Callable[[str], None],
        command: Sequence[str] = ENGINE_COMMAND,
    ) -> None:
        """As EngineClient's. `on_progress` and `on_ready` are told of the first engine, for all load the same."""
        self._observer, self._on_failed = observer, on_failed
        self._sequences = config.engine.max_num_seqs
        self.begun = asyncio.Event()
        self._totals = Totals(observer, config.server.data_parallel_size)
        self._loads = [0] * config.server.data_parallel_size  # unfinished requests
        self._engines = [
            EngineClient(
                config,
                self._totals.of_engine(number),
                on_progress if number == 0 else lambda report: None,
                on_ready if number == 0 else self._say_ready(number),
                lambda sentence, number=number: self._note_failure(number, sentence),  # type: ignore[misc]
                command,
                gpus,
            )
            for number, gpus in enumerate(gpus_of_engines(config))
        ]

    # ---- Asking

    def submit(self, prompts: Sequence[Submission], begin_again: Callable[[], None] | None = None) -> RoutedAnswers:
        """`begin_again` is called when news that came count for nothing, because the engine died and another one begins anew;
        without it nothing is begun anew of which there were news."""
        return RoutedAnswers(self, prompts, begin_again)

    def route(self, prompts: Sequence[Submission]) -> tuple[int, UpdateQueue]:
        """The engine that is asked, and its news."""
        self.require_ready()
        loads = [load if engine.ready else None for engine, load in zip(self._engines, self._loads, strict=True)]
        found = choose(affinity_key(prompts), loads, self._sequences)
        queue = self._engines[found.engine].submit(prompts)
        self._loads[found.engine] += 1
        self._observer.request_routed(found.engine, found.spilled)
        return found.engine, queue

    def note_end(self, engine: int) -> None:
        self._loads[engine] -= 1

    async def flush(self) -> None:
        await asyncio.gather(*(engine.flush() for engine in self._ready_engines()))

    async def fresh_stats(self) -> Stats:
        """Of all engines together."""
        await asyncio.gather(*(engine.fresh_stats() for engine in self._ready_engines()))
        return self._totals.stats()

    def _ready_engines(self) -> list[EngineClient]:
        self.require_ready()
        return [engine for engine in self._engines if engine.ready]

    # ---- What they are, together

    @property
    def ready(self) -> bool:
        return any(engine.ready for engine in self._engines)

    def require_ready(self) -> None:
        if not self.ready:
            raise unavailable(self.condition)

    @property
    def state(self) -> EngineState:
        """The best of them."""
        order = list(EngineState)
        best = (EngineState.READY, *order)
        return min((engine.state for engine in self._engines), key=best.index)

    @property
    def condition(self) -> str:
        first = next(engine for engine in self._engines if engine.state is self.state)
        there = sum(engine.ready for engine in self._engines)
        return first.condition if not there else f"{there} of {len(self._engines)} engines answer."

    @property
    def members(self) -> Sequence[EngineClient]:
        return self._engines

    @property
    def ready_report(self) -> Ready | None:
        return next((engine.ready_report for engine in self._engines if engine.ready_report is not None), None)

    @property
    def restarts(self) -> int:
        return sum(engine.restarts for engine in self._engines)

    @property
    def work_age_s(self) -> float:
        return max(engine.work_age_s for engine in self._engines)

    # ---- Their processes

    def start(self) -> None:
        for engine in self._engines:
            engine.start()
        self._begin = asyncio.get_running_loop().create_task(self._await_begun())

    async def _await_begun(self) -> None:
        for engine in self._engines:
            await engine.begun.wait()
        self.begun.set()

    async def close(self) -> None:
        self._begin.cancel()
        await asyncio.gather(*(engine.close() for engine in self._engines))

    def _say_ready(self, number: int) -> Callable[[Ready], None]:
        return lambda report: log.info("Engine %d of %d is ready.", number + 1, len(self._engines))

    def _note_failure(self, number: int, sentence: str) -> None:
        log.error("Engine %d of %d: %s", number + 1, len(self._engines), sentence)
        if all(engine.state is EngineState.FAILED for engine in self._engines):
            self.begun.set()
            self._on_failed(sentence)


class Totals:
    """What engines count, added up for one observer; an engine that starts again loses nothing of what it had counted."""

    def __init__(self, observer: Observer, engines: int) -> None:
        self.observer = observer
        self._now: list[Stats | None] = [None] * engines
        self._before: Stats | None = None  # counters of engines that are gone
        self._ready: list[Ready | None] = [None] * engines

    def of_engine(self, number: int) -> Observer:
        return _OneOf(self, number)

    def note(self, number: int, stats: Stats) -> None:
        self._now[number] = stats
        self.observer.engine_stats(self.stats())
        self.observer.engine_hits(number, stats.embedding_hits)

    def note_ready(self, number: int, report: Ready) -> None:
        if first := not any(self._ready):
            self._before = None  # whoever counts begins anew, too
        self._ready[number] = report
        found = [report for report in self._ready if report is not None]
        memory = msgspec.structs.replace(
            report.memory, **{name: sum(getattr(one.memory, name) for one in found) for name in report.memory.__struct_fields__}
        )
        whole = msgspec.structs.replace(report, memory=memory)
        (self.observer.engine_ready if first else self.observer.engine_joined)(whole)

    def note_death(self, number: int, restarts: int) -> None:
        gone = self._now[number]
        if gone is not None:
            counters = msgspec.structs.replace(gone, **dict.fromkeys(_GAUGES, 0))
            self._before = counters if self._before is None else _sum(self._before, counters)
        self._now[number] = self._ready[number] = None
        if any(self._ready):
            self.observer.engine_left()
            self.observer.engine_stats(self.stats())
        else:
            self.observer.engine_died(restarts)

    def stats(self) -> Stats:
        found = [stats for stats in (self._before, *self._now) if stats is not None]
        if not found:
            raise unavailable("No engine has said yet what it counts.")
        total = found[0]
        for stats in found[1:]:
            total = _sum(total, stats)
        return total


class _OneOf(Observer):
    def __init__(self, totals: Totals, number: int) -> None:
        self._totals, self._number = totals, number

    def engine_ready(self, report: Ready) -> None:
        self._totals.note_ready(self._number, report)

    def engine_died(self, restarts: int) -> None:
        self._totals.note_death(self._number, restarts)

    def engine_stats(self, stats: Stats) -> None:
        self._totals.note(self._number, stats)


# Of Stats: what an engine that is gone has no more of.
_GAUGES = (
    "running", "waiting", "pages", "pages_used", "pages_cached", "prefix_pages", "embedding_bytes", "embedding_bytes_used",
    "host_bytes_used", "graphs", "gpu_bytes", "encoder_up",
)  # fmt: skip


def _sum(one: Stats, other: Stats) -> Stats:
    return Stats(*map(operator.add, msgspec.structs.astuple(one), msgspec.structs.astuple(other)))
