"""One worker process as the engine sees it: started, connected, told things, listened to, ended; see worker/main.py."""

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import zmq

from sightline.child_process import name_of_socket_folder
from sightline.worker.messages import FromWorker, from_worker

COMMAND = (sys.executable, "-m", "sightline.worker.main")
_END_PATIENCE_S = 5.0


class Process(Protocol):
    """What is asked of subprocess.Popen."""

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int: ...

    def kill(self) -> None: ...


def start_child(address: str) -> Process:
    # Standard output is the request log's; whatever a library prints goes to standard error.
    return subprocess.Popen((*COMMAND, address, str(os.getpid())), stdin=subprocess.DEVNULL, stdout=2)


class WorkerProcess:
    def __init__(
        self, context: "zmq.Context[zmq.SyncSocket]", name: str, start: Callable[[str], Process] = start_child
    ) -> None:
        """`name` is what messages call it. `start` makes one that will connect to an address."""
        self.name = name
        self._folder = name_of_socket_folder()
        self.socket = context.socket(zmq.PAIR)
        for option in (zmq.SNDHWM, zmq.RCVHWM, zmq.LINGER):
            self.socket.setsockopt(option, 0)
        address = f"ipc://{self._folder}/worker"
        self._process = start(address)
        try:
            self._folder.mkdir(mode=0o700)  # now somebody is there to remove it if this process is killed (child_process.py)
            self.socket.bind(address)
        except BaseException:
            self.kill()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, frames: Sequence[bytes | memoryview]) -> None:
        """There is no limit on waiting messages, so it is taken at once."""
        self.socket.send_multipart(frames, copy=False)

    def received(self) -> Iterator[FromWorker]:
        """All that has come."""
        while self.socket.poll(0):
            yield from_worker.decode(self.socket.recv_multipart())

    @property
    def end(self) -> str | None:
        """How it ended, in words; None while it lives or has things to say."""
        code = self._process.poll()
        if code is None or self.socket.poll(0):
            return None
        how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
        return f"The {self.name} {how}."

    @property
    def was_killed(self) -> bool:
        code = self._process.poll()
        return code is not None and code < 0

    def wait(self, ends_itself: bool) -> None:
        """For its end, if it was told to end; else it is killed."""
        if ends_itself:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_PATIENCE_S)
        self.kill()

    def kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        self.socket.close()
        shutil.rmtree(self._folder, ignore_errors=True)
