"""The engine process as the API process sees it: started, spoken to, watched, and started again when it dies.

```
starting ──Ready──► ready ──the process ends──► restarting ──pause──► starting
    │ │               │                          ▲   │
    │ └─engine_timeout_s─► hung ──killed─────────┘   │
    └──Refused──► failed ◄──too many restarts────────┘          close() ──► stopped, from any state
```

Each process gets sockets of its own, one for commands and news in a private folder and one for heartbeats; a message of a dead
engine can never reach its successor.
"""

import asyncio
import contextlib
import itertools
import logging
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from enum import Enum
from typing import Any

from sightline.config import Config, ServerConfig
from sightline.engine.file_cache import FileCacheIndex
from sightline.engine.messages import (
    Abort,
    Done,
    EngineBroken,
    EngineRefused,
    Flush,
    FromEngine,
    LoadProgress,
    News,
    Ping,
    Ready,
    Start,
    Stats,
    Stop,
    ToEngine,
    UpdateHead,
    add_frames,
    decode_report,
    encode,
)
from sightline.server.engine_process import EngineProcess, engine_process
from sightline.server.errors import ApiError, failed, unavailable
from sightline.server.observer import Observer
from sightline.submission import Submission

log = logging.getLogger("sightline.engine")

RESTART_WINDOW_S = 600.0
_STOP_PATIENCE_S = 5.0
ENGINE_COMMAND = (sys.executable, "-m", "sightline.engine.main")
_LAST_WORDS_S = 0.2  # in which what a process said before it ended comes in
_REPLY_S = 60.0  # commands wait for the step in progress, which may take long


class EngineState(Enum):
    STARTING = "starting"
    READY = "ready"
    HUNG = "hung"
    RESTARTING = "restarting"
    FAILED = "failed"
    STOPPED = "stopped"


class EngineGone(ApiError):
    """The engine died while it worked on a request."""

    def __init__(self) -> None:
        sentence = "The engine stopped while it worked on this request."
        super().__init__(503, sentence, code="engine_died", headers={"Retry-After": "2"})


class UpdateQueue:
    """News of the prompts of one HTTP request, as they come. Must be released in the end."""

    def __init__(self, numbers: dict[int, int], left: int, engine: "EngineClient") -> None:
        self._engine = engine
        self.numbers = numbers  # of each prompt in the engine → place of its first answer
        self.left = left  # answers that have not ended
        self._news: list[UpdateHead | ApiError] = []
        self._waiter: asyncio.Future[None] | None = None

    @property
    def complete(self) -> bool:
        return self.left == 0

    def tell(self, news: UpdateHead | ApiError) -> None:
        self._news.append(news)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def release(self) -> None:
        """The asker is done: what has not ended, the engine ends before its next step."""
        self._engine.forget(self)

    async def batches(self) -> AsyncIterator[list[tuple[int, UpdateHead]]]:
        """All news that have come since the last look, with the place of the answer, until every answer has ended.

        Raises ApiError where one failed.
        """
        while self.left:
            if not self._news:
                self._waiter = asyncio.get_running_loop().create_future()
                await self._waiter
            batch, self._news = self._news, []
            updates = []
            for news in batch:
                if isinstance(news, ApiError):
                    raise news
                if news.failure is not None:
                    raise failed(news.failure)
                self.left -= news.last
                updates.append((self.numbers[news.number] + news.index, news))
            yield updates


class EngineClient:
    def __init__(
        self,
        config: Config,
        observer: Observer,
        on_progress: Callable[[LoadProgress], None],
        on_ready: Callable[[Ready], None],
        on_failed: Callable[[str], None],
        command: Sequence[str] = ENGINE_COMMAND,
        gpus: str | None = None,
    ) -> None:
        """`on_failed` is called once with a sentence when the engine cannot be kept running. `command` starts an engine process
        when it is given the arguments that engine/link.py names. `gpus`: those that it may see, by default all."""
        self._config, self._observer, self._command, self._gpus = config, observer, command, gpus
        self._on_progress, self._on_ready, self._on_failed = on_progress, on_ready, on_failed
        self.state = EngineState.STARTING
        self.ready_report: Ready | None = None
        self.stats: Stats | None = None
        self.restarts = 0
        self.pid: int | None = None
        self.begun = asyncio.Event()  # there has been a process, or there will be none
        self._deaths: deque[float] = deque()
        self._hang: str | None = None  # why the process was judged to hang
        self._broken: str | None = None  # its last words, if it could not go on
        self._numbers = itertools.count(1)
        self._answers: dict[int, UpdateQueue] = {}
        self._replies: dict[int, asyncio.Future[None]] = {}
        self._own: EngineProcess | None = None
        self._file_index = self._new_file_index()
        self._task: asyncio.Task[None] | None = None

    # ---- Asking

    @property
    def members(self) -> Sequence["EngineClient"]:
        return (self,)

    @property
    def ready(self) -> bool:
        return self.state is EngineState.READY

    @property
    def work_age_s(self) -> float:
        """How long ago the engine's current step, or stage of its start, began or last advanced; 0 while it is idle."""
        return self._own.heartbeats.work_age_s if self._own is not None else 0.0

    @property
    def condition(self) -> str:
        """The state as a sentence."""
        sentences = {
            EngineState.STARTING: "The model is being loaded.",
            EngineState.READY: "The engine answers.",
            EngineState.HUNG: f"The engine hangs and is being killed: {self._hang}.",
            EngineState.RESTARTING: "The engine crashed and is being started again.",
            EngineState.STOPPED: "The server is shutting down.",
            EngineState.FAILED: "The engine cannot be kept running.",
        }
        return sentences[self.state]

    def require_ready(self) -> None:
        if not self.ready:
            raise unavailable(self.condition)

    def submit(self, prompts: Sequence[Submission], begin_again: Callable[[], None] | None = None) -> UpdateQueue:
        """`begin_again`: as EngineGroup's. There is no other engine to begin again."""
        self.require_ready()
        numbers: dict[int, int] = {}
        position = 0
        for prompt in prompts:
            numbers[next(self._numbers)] = position
            position += prompt.sampling.n
        answers = UpdateQueue(numbers, position, self)
        for number, prompt in zip(numbers, prompts, strict=True):
            self._answers[number] = answers
            self._send_frames(add_frames(self._file_index, number, prompt))
        return answers

    def forget(self, answers: UpdateQueue) -> None:
        for number in answers.numbers:
            if self._answers.pop(number, None) is not None and not answers.complete:
                self._send(Abort(number))

    async def flush(self) -> None:
        await self._ask(Flush(next(self._numbers)))

    async def fresh_stats(self) -> Stats:
        """Stats as of now, not as of the last report."""
        await self._ask(Ping(next(self._numbers)))
        assert self.stats is not None
        return self.stats

    async def _ask(self, command: Flush | Ping) -> None:
        self.require_ready()
        reply: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._replies[command.number] = reply
        self._send(command)
        try:
            await asyncio.wait_for(reply, _REPLY_S)
        except TimeoutError:
            raise unavailable(f"The engine did not answer within {_REPLY_S:g} s.") from None
        finally:
            self._replies.pop(command.number, None)

    def _new_file_index(self) -> FileCacheIndex:
        """A new process has no files."""
        return FileCacheIndex(self._config.server.kept_media_bytes)

    def _send(self, message: ToEngine) -> None:
        if isinstance(message, Flush):
            self._file_index.clear()  # as the engine will before it hears of the next request
        self._send_frames([encode(message)])

    def _send_frames(self, frames: list[Any]) -> None:
        if self._own is not None and self.state in (EngineState.READY, EngineState.STARTING):
            # There is no limit on waiting messages, so it is taken at once. Large buffers are handed over, not copied.
            self._own.socket.send(frames)

    # ---- The process

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._watch())

    async def close(self) -> None:
        """Stops the engine; requests that are still in it are dropped."""
        patience = _STOP_PATIENCE_S if self.ready else 0.0  # one that still loads listens to nobody
        if self.ready:
            self._send(Stop())
        self.state = EngineState.STOPPED
        if self._own is not None:
            with contextlib.suppress(TimeoutError):  # then it is killed with the task
                await asyncio.wait_for(self._own.process.wait(), patience)
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _watch(self) -> None:
        try:
            await self._supervise()
        except Exception as error:  # a mistake of ours, or no process can be started: nobody may wait for ever
            log.exception("The engine's supervision failed.")
            self._lose_all()
            self._give_up(f"The engine process cannot be supervised: {error!r}.")

    async def _supervise(self) -> None:
        while True:
            code, refusal = await self._one_life()
            if self.state is EngineState.STOPPED:
                return
            self._lose_all()
            if refusal is not None:
                self._give_up(refusal)
                return
            how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
            if self._hang is not None:
                how = f"hung and was killed: {self._hang}"
            if self._broken is not None:
                how = f"could not go on: {self._broken.removesuffix('.')}"
            now = time.monotonic()
            self._deaths.append(now)
            while now - self._deaths[0] > RESTART_WINDOW_S:
                self._deaths.popleft()
            self.restarts += 1
            self._observer.engine_died(self.restarts)
            if len(self._deaths) > self._config.server.max_restarts:
                self._give_up(f"The engine process {how}, after {len(self._deaths) - 1} restarts in ten minutes.")
                return
            pause = self._config.server.restart_backoff_s * 2 ** (len(self._deaths) - 1)
            log.error("The engine process %s; restart %d follows in %.1f s.", how, len(self._deaths), pause)
            self.state = EngineState.RESTARTING
            await asyncio.sleep(pause)
            self.state = EngineState.STARTING

    def _give_up(self, sentence: str) -> None:
        self.state = EngineState.FAILED
        self.begun.set()
        self._on_failed(sentence)

    async def _one_life(self) -> tuple[int, str | None]:
        """Runs a process until it ends. Returns its exit code, and why it refused to load, if it did."""
        refusal: list[str] = []
        self._hang = self._broken = None
        timeout_s = self._config.server.engine_timeout_s
        async with engine_process(self._command, timeout_s, lambda *frames: self._hear(refusal, *frames), self._gpus) as own:
            self._own, self.pid = own, own.process.pid
            self._file_index = self._new_file_index()
            server = self._config.server  # whose keys are none of its business
            kept = ServerConfig(
                kept_media_mb=server.kept_media_mb, encoder_only=server.encoder_only, engine_timeout_s=server.engine_timeout_s
            )
            self._send(Start(replace(self._config, server=kept)))
            self.begun.set()
            judge = asyncio.create_task(self._end_hang(own))
            try:
                code = await own.process.wait()
                await asyncio.sleep(_LAST_WORDS_S)
            finally:
                judge.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await judge
                self._own = None
        return code, refusal[0] if refusal else None

    async def _end_hang(self, own: EngineProcess) -> None:
        """Kills an engine that hangs: whoever waits for it would wait for ever."""
        while self._config.server.engine_timeout_s:
            await asyncio.sleep(own.heartbeats.interval_s)
            hang = own.heartbeats.hang()
            if hang is not None and self.state in (EngineState.STARTING, EngineState.READY):
                log.error("The engine hangs: %s; it is killed.", hang)
                self._hang, self.state = hang, EngineState.HUNG
                self._lose_all()  # before it has died: a process that waits for a driver may take long to
                with contextlib.suppress(ProcessLookupError):
                    own.process.kill()
                return

    def _hear(self, refusal: list[str], message: bytes, *frames: memoryview) -> None:
        """`frames` lie behind the message."""
        report = decode_report(message)
        if isinstance(report, EngineRefused):
            refusal.append(report.message)
        elif isinstance(report, EngineBroken):
            self._broken = report.message
        elif self.state is not EngineState.HUNG:
            self._take(report, *frames)

    def _take(self, report: FromEngine, *frames: memoryview) -> None:
        if isinstance(report, News):
            for update in report.updates:
                answers = self._answers.get(update.number)
                if answers is not None:
                    answers.tell(update)
        elif isinstance(report, Stats):
            self.stats = report
            self._observer.engine_stats(report)
        elif isinstance(report, Done):
            reply = self._replies.get(report.number)
            if reply is not None and not reply.done():
                reply.set_result(None)
        elif isinstance(report, LoadProgress):
            self._on_progress(report)
        elif isinstance(report, Ready):
            if self.state is EngineState.STARTING:
                self.state, self.ready_report = EngineState.READY, report
            self._observer.engine_ready(report)
            self._on_ready(report)

    def _lose_all(self) -> None:
        """Nobody waits for an engine that is gone."""
        self.stats = None
        for answers in set(self._answers.values()):
            answers.tell(EngineGone())
        self._answers.clear()
        for reply in self._replies.values():
            if not reply.done():
                reply.set_exception(EngineGone())
        self._replies.clear()
