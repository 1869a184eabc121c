"""How a decode that runs elsewhere is told that nobody wants it any more."""

import contextlib
import threading
from collections.abc import Callable, Iterator

from sightline.media.decoder_errors import DecodeCancelled


class Cancellation:
    """Called, it says whether the decode is cancelled, which is how a thread finds out. A process is killed instead."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requested = False
        self._kill: Callable[[], None] | None = None

    def __call__(self) -> bool:
        return self._requested

    def request(self) -> None:
        with self._lock:
            self._requested = True
            if self._kill is not None:
                self._kill()

    @contextlib.contextmanager
    def killing(self, kill: Callable[[], None]) -> Iterator[None]:
        """While the block runs, cancelling calls `kill`. Not entered if the decode is cancelled already."""
        with self._lock:
            if self._requested:
                raise DecodeCancelled
            self._kill = kill
        try:
            yield
        finally:
            with self._lock:  # from here on the process belongs to another decode
                self._kill = None
