"""kill -9 of the API process: no process and no folder outlives it by more than 5 s, at whatever moment of the start.

Engines, workers in processes of their own (--worker-process), and helpers that decode.
"""

import base64
import contextlib
import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from PIL import Image

from device import DEVICE
from server import odd_server
from server.running import MORE_FLAGS, SERVE, process_exists, wait_for
from server.watch import descendants

LIMIT_S = 5.0
TRIES = 3


@dataclass
class Starting:
    """A server from its very first moment on."""

    process: subprocess.Popen[bytes]
    temporary: Path
    _errors: Path

    @property
    def said(self) -> str:
        return self._errors.read_text(errors="replace")

    @property
    def folders(self) -> list[Path]:
        return list(self.temporary.iterdir())

    def engines(self) -> set[int]:
        """Processes that the server has started, whether or not it is still there: their command line has the folder's name."""
        found = set(descendants(self.process.pid))
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                if os.fsencode(self.temporary) in path.read_bytes():
                    found.add(int(path.parent.name))
        return {pid for pid in found if process_exists(pid)}

    def having(self, module: str) -> set[int]:
        """Of these processes, those that run a module."""
        found = set()
        for pid in self.engines():
            with contextlib.suppress(OSError):
                if module.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                    found.add(pid)
        return found

    def maps_torch(self, module: str = "") -> bool:
        """An engine, or whoever runs the module, has begun to import it."""
        for pid in self.having(module):
            with contextlib.suppress(OSError):
                if "libtorch" in Path(f"/proc/{pid}/maps").read_text():
                    return True
        return False

    @property
    def port(self) -> int:
        found = re.search(r"http://127.0.0.1:(\d+)", self.said)
        return int(found[1]) if found else 0

    def kill(self) -> None:
        """Raises if something is left of it for too long."""
        started = self.engines()
        self.process.kill()
        self.process.wait()
        end = time.monotonic() + LIMIT_S
        while time.monotonic() < end:
            left = {pid for pid in started if process_exists(pid)} | self.engines()
            if not left and not self.folders:
                return
            time.sleep(0.02)
        raise AssertionError(f"left after {LIMIT_S:g} s: processes {left}, folders {self.folders}: {self.said}")


@contextlib.contextmanager
def starting(folder: Path, *program: str) -> Iterator[Starting]:
    temporary, errors = folder / "tmp", folder / "stderr"
    temporary.mkdir(parents=True)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(temporary)}
    command = [sys.executable, *program, "--port", "0", "--device", DEVICE, "--kv-cache-gb", "0.1", *MORE_FLAGS]
    with errors.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, env=environment, stdin=subprocess.DEVNULL)
    server = Starting(process, temporary, errors)
    try:
        yield server
    finally:
        for pid in {process.pid, *server.engines()}:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()


MOMENTS: dict[str, Callable[[Starting], object]] = {
    "spawned": lambda server: server.engines(),
    "folder made": lambda server: server.folders,
    "connected": lambda server: server.engines() and "http://" in server.said and not server.folders,
    "imports": lambda server: server.maps_torch(),
    "loading": lambda server: "Loading weights" in server.said,
    "ready": lambda server: "The model is ready" in server.said,
}


@pytest.mark.parametrize("attempt", range(TRIES))
@pytest.mark.parametrize("moment", MOMENTS)
def test_nothing_outlives_a_server_that_is_killed(tmp_path: Path, moment: str, attempt: int) -> None:
    """Red if an engine learns who its parent is only after the imports, or if nobody is there to remove the folder."""
    with starting(tmp_path, *SERVE) as server:
        wait_for(lambda: MOMENTS[moment](server) or None, moment)
        server.kill()


WORKER = "sightline.worker"
WORKER_MOMENTS: dict[str, Callable[[Starting], object]] = {
    "spawned": lambda server: server.having(WORKER),
    "folder made": lambda server: server.having(WORKER) and server.folders,
    "imports": lambda server: server.maps_torch(WORKER),
    "loading": lambda server: "Loading weights" in server.said,
    "ready": lambda server: "The model is ready" in server.said,
}


@pytest.mark.parametrize("attempt", range(TRIES))
@pytest.mark.parametrize("moment", WORKER_MOMENTS)
def test_no_worker_outlives_a_server_that_is_killed(tmp_path: Path, moment: str, attempt: int) -> None:
    """The kernel ends the engine at once. Red if its worker goes on, or if nobody is left to remove their folder."""
    with starting(tmp_path, *SERVE, "--worker-process") as server:
        wait_for(lambda: WORKER_MOMENTS[moment](server) or None, moment)
        server.kill()


def test_no_helper_outlives_a_server_that_is_killed(tmp_path: Path) -> None:
    """While it decodes something that takes a minute. Red if its end depends on the end of its work."""
    slow = many_scans(9000, 190)
    with starting(tmp_path, *SERVE, "--max-image-decode-mpx", "100000", "--max-request-image-decode-mpx", "100000") as server:
        wait_for(lambda: "The model is ready" in server.said or None, "the server to be ready")
        url = f"data:image/jpeg;base64,{base64.b64encode(slow).decode()}"
        content = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "What?"}]
        body = json.dumps({"messages": [{"role": "user", "content": content}]}).encode()
        with socket.create_connection(("127.0.0.1", server.port), timeout=60) as client:
            client.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body))
            client.sendall(body)
            helpers = wait_for(lambda: server.having("encoder.decoding.process") or None, "a helper")
            time.sleep(1.0)  # it is decoding by now
            assert all(process_exists(pid) for pid in helpers)
            server.kill()


def many_scans(side: int, scans: int) -> bytes:
    """A grey progressive JPEG whose last scan comes again and again."""
    buffer = io.BytesIO()
    Image.new("L", (side, side), 99).save(buffer, "JPEG", progressive=True)
    data = buffer.getvalue()
    places = [found.start() for found in re.finditer(b"\xff\xda", data)]
    pieces = [data[start:end] for start, end in zip(places, [*places[1:], len(data) - 2], strict=True)]
    return data[: places[0]] + b"".join(pieces) + pieces[-1] * (scans - len(pieces)) + data[-2:]


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel ends an orphan on Linux only")
def test_an_orphan_that_keeps_the_lock(tmp_path: Path) -> None:
    """Red if its end depends on a thread of Python, which cannot run while a library has the interpreter's lock."""
    file = tmp_path / "file"
    with starting(tmp_path, odd_server.__file__, "load_keeps_the_lock", str(file)) as server:
        wait_for(lambda: file.exists() or None, "the lock to be taken")
        server.kill()
