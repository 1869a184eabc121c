"""Ranks under torchrun. Rank 0 serves; each of the others is a process that starts a worker whenever there is an engine.

```
torchrun ─┬─ rank 0: server ── engine ── worker of rank 0        the engine asks for the others by way of torchrun's store:
          ├─ rank 1: holder ── worker of rank 1                  N/1 is where the worker of rank 1 of the N-th engine connects,
          └─ rank 2: holder ── worker of rank 2                  N/1/pid which it is, N/1/code how it ended
```

A holder ends with the server, or with torchrun. Its worker ends when it is told to, with the holder, or soon after the engine.
"""

import contextlib
import json
import os
import select
import signal
import subprocess
import time
from typing import Any, TypeAlias

import torch.distributed as dist

from sightline.child_process import die_with_parent
from sightline.engine.worker_process import COMMAND
from sightline.parallel.launch import Launch

Store: TypeAlias = Any  # a dist.TCPStore, of which torch's annotations do not know
_LOOK_S = 0.1
_END_PATIENCE_S = 5.0  # for a worker to end by itself when its engine is gone


class LaunchedRanks:
    """The engine's side: ranks from 1 on, asked for with the number of this engine."""

    def __init__(self, launch: Launch) -> None:
        self._store = _connect(launch)
        self._engine = self._store.add("sightline/engines", 1)

    def start(self, rank: int, address: str) -> "LaunchedProcess":
        key = f"sightline/{self._engine}/{rank}"
        self._store.set(key, json.dumps({"address": address, "engine": os.getpid(), "server": os.getppid()}))
        return LaunchedProcess(self._store, key)


class LaunchedProcess:
    """A worker that a holder has started, with what subprocess.Popen says of one."""

    def __init__(self, store: Store, key: str) -> None:
        self._store, self._key = store, key
        self._code: int | None = None

    @property
    def pid(self) -> int:
        """Waits until there is one."""
        return int(self._store.get(f"{self._key}/pid"))

    def poll(self) -> int | None:
        if self._code is None and self._store.check([f"{self._key}/code"]):
            self._code = int(self._store.get(f"{self._key}/code"))
        return self._code

    def wait(self, timeout: float | None = None) -> int:
        until = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if until is not None and time.monotonic() > until:
                raise subprocess.TimeoutExpired(COMMAND, timeout or 0.0)
            time.sleep(_LOOK_S)
        return code

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)


class _Watched:
    """A process of somebody else's, until it ends."""

    def __init__(self, pid: int) -> None:
        try:
            self._file: int | None = os.pidfd_open(pid)
        except ProcessLookupError:
            self._file = None

    @property
    def ended(self) -> bool:
        if self._file is not None and select.select([self._file], [], [], 0)[0]:
            self.close()
        return self._file is None

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


def hold_rank(launch: Launch) -> int:
    """The life of a process of torchrun's that does not serve; its exit code."""
    die_with_parent()
    told: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):  # torchrun tells all: the server may still finish what it is at
        signal.signal(number, lambda number, frame: told.append(number))
    store, server, engine = _connect(launch), None, 0
    while True:
        engine += 1
        key = f"sightline/{engine}/{launch.rank}"
        while not store.check([key]):
            if (told and server is None) or (server is not None and server.ended):
                return 0
            time.sleep(_LOOK_S)
        asked = json.loads(store.get(key))
        server = server or _Watched(asked["server"])
        worker = subprocess.Popen(
            (*COMMAND, asked["address"], str(os.getpid()), str(asked["engine"])), stdin=subprocess.DEVNULL
        )
        store.set(f"{key}/pid", str(worker.pid))
        code = _end_of(worker, _Watched(asked["engine"]))
        store.set(f"{key}/code", str(code))


def _end_of(worker: "subprocess.Popen[bytes]", engine: _Watched) -> int:
    """Waits for it, and ends it if it outlives its engine."""
    try:
        while not engine.ended:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return worker.wait(_LOOK_S)
        with contextlib.suppress(subprocess.TimeoutExpired):
            return worker.wait(_END_PATIENCE_S)
        worker.kill()
        return worker.wait()
    finally:
        engine.close()


def _connect(launch: Launch) -> Store:
    return dist.TCPStore(launch.address, launch.port, is_master=False, wait_for_workers=False)  # type: ignore[attr-defined]
