"""Conversations that are answered together, each with an outcome of its own: answers, or the error that it ended with."""

import contextlib
from collections.abc import Iterator
from dataclasses import replace

from sightline.engine.engine import Update
from sightline.errors import OutOfMemoryError, UserError, WorkerError
from sightline.stream.answer_parts import Calls, parts_of
from sightline.types import Completion

_OF_ONE = (UserError, OutOfMemoryError, WorkerError)  # what ends one request and says nothing about the others


class Batch:
    def __init__(self, conversations: int, answers: int, calls: Calls | None, several: bool) -> None:
        """`answers` to each. `calls`: which ones answers may have; None: answers are not taken apart. An error is raised
        unless there are `several` conversations, or could be."""
        self._conversations, self._answers, self._calls, self._several = conversations, answers, calls, several
        self._requests: dict[int, tuple[int, bool]] = {}  # by number: which conversation, whether it begins with reasoning
        self._found: dict[tuple[int, int], Completion] = {}  # by conversation and answer

    @contextlib.contextmanager
    def submitting(self, position: int) -> Iterator[None]:
        try:
            yield
        except _OF_ONE as error:
            self._fail(position, error)

    def started(self, position: int, number: int, begins_in_reasoning: bool) -> None:
        self._requests[number] = position, begins_in_reasoning

    def take(self, update: Update) -> int:
        """How many answers this was the end of."""
        position, begins_in_reasoning = self._requests[update.request_id]
        before = len(self._found)
        if update.error is not None:
            if not isinstance(update.error, _OF_ONE):
                raise update.error
            self._fail(position, update.error)
        elif update.completion is not None:
            self._found[position, update.index] = self._taken_apart(update.completion, begins_in_reasoning)
        return len(self._found) - before

    @property
    def complete(self) -> bool:
        return len(self._found) == self._conversations * self._answers

    def completions(self) -> list[Completion]:
        return [self._found[key] for key in sorted(self._found)]

    def numbers(self) -> list[int]:
        return list(self._requests)

    def _fail(self, position: int, error: Exception) -> None:
        if not self._several:
            raise error
        for index in range(self._answers):
            failed = Completion("", (), "error", prompt_tokens=0, timings={}, index=index, error=error)
            self._found.setdefault((position, index), failed)

    def _taken_apart(self, completion: Completion, begins_in_reasoning: bool) -> Completion:
        if self._calls is None:
            return replace(completion, content=completion.text)
        parts = parts_of(completion.text, self._calls, begins_in_reasoning)
        return replace(completion, content=parts.content, reasoning=parts.reasoning, tool_calls=parts.calls)
