"""Requests that wait for their grammar: compiling may take long, and a step must not wait for it."""

from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

from sightline.grammar.compile import Grammar, compile_grammar, find_grammar
from sightline.prompt.tokenizer import Tokenizer
from sightline.types import StructuredOutput

WAIT_S = 0.02  # when there is nothing else to do; commands wait as long


class PendingGrammars:
    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="grammar")  # a slow one does not hold up all others
        self._pending: dict[int, Future[Grammar]] = {}  # by request id, in the order of arrival

    def __len__(self) -> int:
        return len(self._pending)

    def start(self, request_id: int, structured: StructuredOutput) -> Grammar | None:
        """The grammar, if it is known; else None, and `take_ready` will give it."""
        known = find_grammar(structured, self._tokenizer)
        if known is None:
            self._pending[request_id] = self._threads.submit(compile_grammar, structured, self._tokenizer)
        return known

    def take_ready(self, idle: bool) -> list[tuple[int, Grammar | Exception]]:
        """What has been compiled since, or why it could not be. Waits a moment if the caller is `idle`."""
        if idle and self._pending:
            wait(self._pending.values(), WAIT_S, FIRST_COMPLETED)
        ready: list[tuple[int, Grammar | Exception]] = []
        for request_id, future in list(self._pending.items()):
            if future.done():
                del self._pending[request_id]
                error = future.exception()
                assert error is None or isinstance(error, Exception), error
                ready.append((request_id, error if error is not None else future.result()))
        return ready

    def drop(self, request_id: int) -> None:
        future = self._pending.pop(request_id, None)
        if future is not None:
            future.cancel()

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
