"""Whether an engine process lives, and whether its work advances: two signals, so that slow is not taken for dead.

```
 the loop, the loader ──begin, touch, idle──► Liveness ◄──state── a thread ──Heartbeat, 4 a second──► API process
```

The heartbeat says that the process lives, whatever the loop is at. What it carries says how long the current step or stage of
the start has gone without advancing. server/heartbeats.py judges both. No torch here: the thread runs before it is imported.
"""

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator

from sightline.engine.messages import IDLE, Heartbeat, encode
from sightline.timing import StageClock

HEARTBEAT_S = 0.25


class Liveness:
    """What a process is working on, and since when it has not advanced. Any thread may tell or ask."""

    def __init__(self, what: str = IDLE) -> None:
        self._what, self._since = what, time.monotonic()

    def begin(self, what: str) -> None:
        """A step or a stage begins."""
        # The time first: a reader in between must not see this work with the age of what was before.
        self._since = time.monotonic()
        self._what = what

    def touch(self) -> None:
        """It advances."""
        self._since = time.monotonic()

    def idle(self) -> None:
        """Nothing is being worked on. Waiting for commands, or for others to decode, is idle."""
        self.begin(IDLE)

    def state(self) -> tuple[str, float]:
        """What, and seconds since it began or was last touched."""
        what = self._what
        return what, time.monotonic() - self._since


class LoadClock(StageClock):
    """Times the stages of a start; each is what the process is working on."""

    def __init__(self, liveness: Liveness) -> None:
        super().__init__()
        self._liveness = liveness

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        self._liveness.begin(f"load: {name}")
        with super().stage(name):
            yield

    def advance(self) -> None:
        self._liveness.touch()


def start_heartbeat(liveness: Liveness, channel: socket.socket, parent: int, orphaned: Callable[[], None]) -> None:
    """Reports until the process ends. `orphaned` is called, in the thread, when `parent` is no longer its parent."""
    channel.setblocking(False)

    def beat() -> None:
        while os.getppid() == parent:
            with contextlib.suppress(OSError):  # the API process has not read the last ones yet: there is nothing to add
                channel.send(encode(Heartbeat(*liveness.state())))
            time.sleep(HEARTBEAT_S)
        orphaned()

    threading.Thread(target=beat, name="heartbeat", daemon=True).start()
