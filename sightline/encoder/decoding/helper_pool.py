"""Threads that each own a helper process, started when there is work and ended, process and all, when there is none."""

import threading
from collections import deque
from collections.abc import Callable

from sightline.encoder.decoding.helper import Helper

IDLE_S = 10.0  # a process without work ends after this


class HelperPool:
    def __init__(self, most: int, idle_s: float = IDLE_S) -> None:
        self._most, self._idle_s = most, idle_s
        self._changed = threading.Condition()
        self._work: deque[Callable[[Helper], None]] = deque()
        self._threads: set[threading.Thread] = set()
        self._working = 0  # threads that take work: not those that are about to end
        self._idle = 0  # of these, how many wait for some
        self._closed = False

    def submit(self, work: Callable[[Helper], None]) -> None:
        """`work` is called in a thread, with the helper that is this thread's."""
        with self._changed:
            self._work.append(work)
            if self._idle < len(self._work) and self._working < self._most:
                self._working += 1
                thread = threading.Thread(target=self._own_helper, name="decode-helper", daemon=True)
                self._threads.add(thread)
                thread.start()
            self._changed.notify()

    def close(self) -> None:
        """What was submitted is called first; a caller who wants none of it cancels before."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            threads = list(self._threads)
        for thread in threads:
            thread.join()

    def _own_helper(self) -> None:
        helper = Helper()
        try:
            while (work := self._next()) is not None:
                work(helper)
        finally:
            helper.close()
            with self._changed:
                self._threads.discard(threading.current_thread())

    def _next(self) -> Callable[[Helper], None] | None:
        with self._changed:
            self._idle += 1
            self._changed.wait_for(lambda: self._work or self._closed, self._idle_s)
            self._idle -= 1
            if self._work:
                return self._work.popleft()
            self._working -= 1
            return None
