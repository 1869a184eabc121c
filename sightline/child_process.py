"""What a process that another one started sees to, so that neither outlives the other and no folder is left.

```
parent   spawns it ── makes the folder of their socket, binds
child            watches the parent ── waits for the folder ── connects, removes the folder ── tells the kernel
orphan           its thread removes the folder and ends it                                   │ the kernel ends it at once
```

The folder is made when somebody is there to remove it, whoever of the two is killed.
"""

import contextlib
import ctypes
import os
import secrets
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from importlib.abc import MetaPathFinder
from pathlib import Path

import zmq
from zmq.utils.monitor import recv_monitor_message

from sightline.errors import ConfigError

_PR_SET_PDEATHSIG = 1  # from <linux/prctl.h>
_LONGEST_FOLDER = 107 - len("/worker")  # bytes: what the kernel takes as the path of a socket, but for the socket
_LINGER_MS = 1000  # for what was said last
_PARENT_CHECK_S = 0.2


def name_of_socket_folder() -> Path:
    """Of a folder that is yet to be made: among temporary files, or in /tmp where a socket there would have too long a path."""
    name = f"sightline-{secrets.token_urlsafe(6)}"
    places = [Path(tempfile.gettempdir()), Path("/tmp")]
    found = next((place / name for place in places if len(os.fsencode(place / name)) <= _LONGEST_FOLDER), None)
    if found is None:
        raise ConfigError(f"The path of the folder for temporary files, {places[0]}, is too long for sockets; set TMPDIR.")
    return found


def folder_of(address: str) -> Path:
    return Path(address.removeprefix("ipc://")).parent


@contextlib.contextmanager
def connection_to_parent(address: str, parent: int) -> Iterator["zmq.SyncSocket"]:
    """To be watched by somebody who calls `end_as_orphan` until it is there."""
    folder = folder_of(address)
    _await_folder(folder)
    context = zmq.Context()
    connection = context.socket(zmq.PAIR)
    for option, value in ((zmq.SNDHWM, 0), (zmq.RCVHWM, 0), (zmq.LINGER, _LINGER_MS)):
        connection.setsockopt(option, value)
    try:
        _connect(connection, address)
        shutil.rmtree(folder, ignore_errors=True)
        die_with_parent()
        if os.getppid() != parent:  # it died before the kernel was told
            end_as_orphan(folder)
        yield connection
    finally:
        with contextlib.suppress(zmq.ZMQError):
            connection.close()
            context.term()


def end_as_orphan(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)


def watch_parent(parent: int, on_orphan: Callable[[], None]) -> None:
    """In a thread, for the time in which the kernel does not know, and for systems where it does not care."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_PARENT_CHECK_S)
        on_orphan()

    threading.Thread(target=watch, name="parent", daemon=True).start()


def die_with_parent() -> None:
    """Where a system cannot, a thread sees to it, unless something keeps Python's lock for long."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


class _ImportCounter(MetaPathFinder):
    """Finds no module; each one that is looked for is progress."""

    def __init__(self, advance: Callable[[], None]) -> None:
        self._advance = advance

    def find_spec(self, *_: object) -> None:
        self._advance()


@contextlib.contextmanager
def imports_advance(advance: Callable[[], None]) -> Iterator[None]:
    """Thousands of modules from a cold disk take long, each of them little."""
    finder = _ImportCounter(advance)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


def _await_folder(folder: Path) -> None:
    """The parent makes it once this process is there to remove it. Whoever else reads command lines might be faster."""
    while not folder.exists():
        time.sleep(0.005)
    if folder.stat().st_uid != os.getuid():
        raise PermissionError(f"The folder {folder} of a socket belongs to another user.")


def _connect(connection: "zmq.SyncSocket", address: str) -> None:
    """Until the other end has taken the connection, which takes nobody there but a thread of zmq."""
    monitor = connection.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED)
    connection.connect(address)
    recv_monitor_message(monitor)
    connection.disable_monitor()
