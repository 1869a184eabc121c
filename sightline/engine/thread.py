"""A thread that owns an engine: others submit requests to it and are told the news. The device is used from here alone."""

import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from sightline.engine.engine import Engine, Update
from sightline.errors import ConfigError
from sightline.submission import Submission

T = TypeVar("T")
Listener = Callable[[Update], None]  # called in the engine's thread; must not block
_IDLE = object()
CHECK_EVERY_S = 60.0


class EngineThread:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._commands: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._listeners: dict[int, Listener] = {}
        self._answers_left: dict[int, int] = {}
        self._checked = time.monotonic()
        self._closed = False
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._loop, name="engine", daemon=True)
        self._thread.start()

    def submit(self, listener: Listener, submission: Submission) -> int:
        """Adds a request (raises what Engine.add does); the listener hears of it until its last update."""

        def add() -> int:
            request_id = self._engine.add(submission)
            self._listeners[request_id] = listener
            self._answers_left[request_id] = submission.sampling.n
            return request_id

        return self.call(add)

    def abort(self, request_id: int) -> None:
        def end() -> None:
            self._forget(request_id)
            self._engine.abort(request_id)

        self.call(end)

    def call(self, function: Callable[[], T]) -> T:
        """Runs a function between two steps, in the engine's thread, and returns its result."""
        if self._closed:
            raise ConfigError("The model is closed and answers no more.")
        future: Future[T] = Future()

        def run() -> None:
            try:
                if self._failure is not None:
                    raise RuntimeError(f"The engine failed and answers no more: {self._failure!r}") from self._failure
                future.set_result(function())
            except BaseException as error:
                future.set_exception(error)

        self._commands.put(run)
        return future.result()

    def close(self) -> None:
        """Ends the thread and the engine after the step in progress; requests that still run are dropped."""
        self.end()
        self._thread.join()

    def end(self) -> None:
        """As close, but waits for nothing: garbage is collected in any thread, the engine's own as well."""
        if not self._closed:
            self._closed = True
            self._commands.put(None)

    def _loop(self) -> None:
        while True:
            command = self._next_command()
            if command is None:
                self._engine.close()
                return
            if command is not _IDLE:
                command()
                continue  # all commands before the next step
            try:
                updates = self._engine.step()
            except BaseException as error:  # a mistake of ours: nobody may wait for ever, nothing goes on as if all was well
                self._fail(error)
                continue
            for update in updates:
                self._tell(update)

    def _next_command(self) -> Any:
        """A waiting command, or _IDLE when there is none and the engine has work; waits when there is neither."""
        if self._failure is None and not self._engine.has_work and self._commands.empty():
            self._check_when_idle()
        try:
            return self._commands.get(block=self._failure is not None or not self._engine.has_work)
        except queue.Empty:
            return _IDLE

    def _check_when_idle(self) -> None:
        """An idle moment is used to check the integrity of its state, now and then: it walks over all pages and rows."""
        now = time.monotonic()
        if now - self._checked >= CHECK_EVERY_S:
            self._checked = now
            try:
                self._engine.check_integrity()
            except AssertionError as error:
                self._fail(error)

    def _tell(self, update: Update) -> None:
        listener = self._listeners.get(update.request_id)
        if listener is None:
            return
        listener(update)
        self._answers_left[update.request_id] -= update.last
        if not self._answers_left[update.request_id]:
            self._forget(update.request_id)

    def _forget(self, request_id: int) -> None:
        self._listeners.pop(request_id, None)
        self._answers_left.pop(request_id, None)

    def _fail(self, error: BaseException) -> None:
        self._failure = error
        for request_id, listener in list(self._listeners.items()):
            listener(Update(request_id, 0, error=RuntimeError(f"The engine failed: {error!r}")))
            self._forget(request_id)
