"""How many bytes of pixels are on the device at a time, whoever brings them."""

import contextlib
import threading
from collections.abc import Iterator


class PixelRoom:
    """Bytes that threads share. More than there is room for is let in when nobody else is there."""

    def __init__(self, room: int) -> None:
        self._room, self._taken = room, 0
        self._changed = threading.Condition()

    @contextlib.contextmanager
    def taken(self, count: int) -> Iterator[None]:
        with self._changed:
            self._changed.wait_for(lambda: not self._taken or self._taken + count <= self._room)
            self._taken += count
        try:
            yield
        finally:
            with self._changed:
                self._taken -= count
                self._changed.notify_all()
