"""A batch from its first row to its last: rows in progress side by side, each asked of the server's endpoints.

Memory is bounded whatever the length of the file: a few megabytes are read ahead, a row is begun when the one before it has its
place among the bytes in flight, and no more than `concurrency` rows are in progress. Answers are in the order they come in.
"""

import asyncio
import contextlib
import signal
import time
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from starlette.types import ASGIApp

from sightline.batch.ask import RowAnswer, ask
from sightline.batch.input_file import BadRow, InputFile, Row
from sightline.batch.progress import BatchTotals, shown
from sightline.batch.result_files import ErrorFile, ResultError, ResultFile, ResultResponse, result_line
from sightline.config import Config
from sightline.errors import UserError
from sightline.server.admission import AdmissionBudget
from sightline.server.engine_client import ENGINE_COMMAND
from sightline.server.runtime import Runtime
from sightline.server.startup_log import StartupLog

URLS = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages")
TRIES = 3  # of a row whose engine dies, before it counts as bad
_READY_LOOK_S = 0.05
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@dataclass(frozen=True)
class BatchPlan:
    requests: Path
    answers: Path
    errors: Path
    concurrency: int  # most rows in progress


class BatchStopped(Exception):
    """By a signal."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


async def run_batch(config: Config, plan: BatchPlan, engine_command: Sequence[str] = ENGINE_COMMAND) -> BatchTotals:
    """Raises UserError where it cannot go on; what has been answered by then is kept."""
    with contextlib.ExitStack() as stack:
        answered: set[bytes] = set()
        rows = InputFile(plan.requests, URLS, answered, config.server.max_request_mb)
        stack.callback(rows.close)
        answers = ResultFile(plan.answers, answered)
        stack.callback(answers.close)
        errors = ErrorFile(plan.errors)
        stack.callback(errors.close)
        batch = _Batch(config, plan.concurrency, rows, answers, errors, engine_command)
        return await batch.run()


class _Batch:
    def __init__(
        self,
        config: Config,
        concurrency: int,
        rows: InputFile,
        answers: ResultFile,
        errors: ErrorFile,
        engine_command: Sequence[str],
    ) -> None:
        self._concurrency, self._level = concurrency, config.server.log_level_number
        self._rows, self._answers, self._errors = rows, answers, errors
        self._totals, self._log = BatchTotals(), StartupLog(self._level)
        self._end: asyncio.Future[None] = asyncio.get_running_loop().create_future()  # why it cannot go on
        admission = AdmissionBudget(config.server.max_inflight_mb, config.server.max_inflight_requests)
        listeners = (self._log.progress, self._log.ready, lambda sentence: self._stop(UserError(sentence)))
        self._runtime = Runtime(config, admission, self._totals, listeners, engine_command)
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="rows")
        self._reading = asyncio.Lock()
        self._read_rows: deque[Row | BadRow] = deque()  # that nobody has begun with

    async def run(self) -> BatchTotals:
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, self._stop, BatchStopped(number))
        try:
            await self._unless_stopped(self._work())
        finally:
            self._log.end_progress()
            self._rows.closed = True
            self._reader.shutdown()
            await self._runtime.close()
            for number in _SIGNALS:
                loop.remove_signal_handler(number)
        return self._totals

    def _stop(self, reason: Exception) -> None:
        if not self._end.done():
            self._end.set_exception(reason)

    async def _unless_stopped(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        try:
            await asyncio.wait((task, self._end), return_when=asyncio.FIRST_COMPLETED)
            (task if task.done() else self._end).result()
        finally:
            task.cancel()
            self._end.cancel()
            await asyncio.gather(task, self._end, return_exceptions=True)

    async def _work(self) -> None:
        await self._read()
        if not self._read_rows:  # no model is needed for that
            return
        context = await self._runtime.start()
        from sightline.server.app import answer_routes  # takes a third of a second, in which the engine has begun to load

        endpoints: Mapping[str, ASGIApp] = {route.path: route.app for route in answer_routes(context)}
        self._runtime.warm_up()
        await self._until_ready()
        self._totals.begun = time.perf_counter()
        async with shown(self._totals, self._rows.size, self._log, self._level):
            workers = [asyncio.create_task(self._answer_rows(endpoints)) for _ in range(self._concurrency)]
            try:
                await asyncio.gather(*workers)
            finally:
                for worker in workers:
                    worker.cancel()
                await asyncio.gather(*workers, return_exceptions=True)
                self._totals.seconds = time.perf_counter() - self._totals.begun

    async def _answer_rows(self, endpoints: Mapping[str, ASGIApp]) -> None:
        """One row after another, until there are no more."""
        while True:
            await self._reading.acquire()
            let_next_read = _Once(self._reading.release)
            try:
                if not self._read_rows:
                    await self._read()
                    if not self._read_rows:
                        return
                row = self._read_rows.popleft()
                if isinstance(row, BadRow):
                    error = ResultError(row.code, row.message, row.param, row.line)
                    self._errors.write(result_line(row.custom_id, None, error))
                    self._totals.failed += 1
                else:
                    self._keep(row, await self._answer(row, endpoints[row.url], let_next_read))
                self._totals.done_bytes += row.size
            finally:
                let_next_read()

    async def _read(self) -> None:
        self._read_rows += await asyncio.get_running_loop().run_in_executor(self._reader, self._rows.next_few)
        self._totals.done_bytes += self._rows.passed_bytes
        self._rows.passed_bytes, self._totals.passed = 0, self._rows.passed

    async def _answer(self, row: Row, endpoint: ASGIApp, on_taken: Callable[[], None]) -> RowAnswer:
        """What is no fault of the row's is tried again: an engine that dies takes the rows with it that are in it."""
        tries = 0
        while True:
            await self._until_ready()
            answer = await ask(endpoint, row.url, row.parts, on_taken)
            if answer.status not in (429, 503):
                return answer
            tries += answer.status == 503 and answer.error().code != "engine_unavailable"
            if tries == TRIES:
                return answer
            await asyncio.sleep(answer.retry_after_s)
            await asyncio.get_running_loop().run_in_executor(self._reader, self._rows.refill, row)

    def _keep(self, row: Row, answer: RowAnswer) -> None:
        response = ResultResponse(answer.status, answer.request_id, msgspec.Raw(answer.body))
        if answer.status == 200:
            self._answers.write(result_line(row.custom_id, response))
            self._totals.answered += 1
            return
        error = answer.error()
        self._errors.write(result_line(row.custom_id, response, ResultError(error.code, error.message, error.param, row.line)))
        self._totals.failed += 1

    async def _until_ready(self) -> None:
        while not self._runtime.engine.ready:
            await asyncio.sleep(_READY_LOOK_S)


class _Once:
    """A call that is made the first time only."""

    def __init__(self, call: Callable[[], None]) -> None:
        self._call: Callable[[], None] | None = call

    def __call__(self) -> None:
        if self._call is not None:
            call, self._call = self._call, None
            call()
