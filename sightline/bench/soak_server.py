"""A server of a soak's own, whose processes are killed in turn, and which is started again when it was the API process's.

Each kill of the API process is followed by a look at what it left: no process and no folder of its making may outlive it.
"""

import asyncio
import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import httpx

from sightline.errors import UserError

ORPHAN_S = 5.0
_POLL_S, _LOOK_S = 0.1, 0.25
_READY_S = 120.0
_MODULES = {
    "helper": b"sightline.encoder.decoding.process",
    "worker": b"sightline.worker.main",
    "engine": b"sightline.engine.main",
}
# Killed again and again, it is to come back soon each time.
_FLAGS = ("--max-restarts", "100000", "--restart-backoff-s", "0.1")


class SoakServer:
    def __init__(self, flags: Sequence[str], folder: Path) -> None:
        self._folder, self._temporary = folder, folder / "tmp"
        self._temporary.mkdir()
        self.admin_key = secrets.token_hex(16)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        own = ("--port", str(self._port), "--admin-api-key", self.admin_key)
        self._command = [sys.executable, "-m", "sightline.cli.main", "serve", *_FLAGS, *flags, *own]
        self._process: subprocess.Popen[bytes] | None = None
        self.kills: Counter[str] = Counter()
        self.complaints: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    @property
    def log(self) -> str:
        return (self._folder / "log").read_text(errors="replace")

    def start(self) -> None:
        environment = {**os.environ, "TMPDIR": str(self._temporary)}
        with (self._folder / "log").open("ab") as out:
            self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL, stderr=out, env=environment)

    async def until_ready(self) -> None:
        async with asyncio.timeout(_READY_S), httpx.AsyncClient(timeout=10) as client:
            while True:
                with contextlib.suppress(httpx.TransportError):
                    if (await client.get(f"{self.url}/ready")).status_code == 200:
                        return
                if self._process is not None and self._process.poll() is not None:
                    raise UserError(f"The server ended: {self.log[-500:]}")
                await asyncio.sleep(_POLL_S)

    async def kill_in_turn(self, every_s: float) -> None:
        """Each kind of process once in so many seconds: in its share of the time it is killed as soon as it is seen."""
        names = [name for name in (*_MODULES, "API") if name != "worker" or "--worker-process" in self._command]
        end = time.monotonic()
        while True:
            for name in names:
                end += every_s / len(names)
                while name != "API" and not self._kill(name) and time.monotonic() < end:
                    await asyncio.sleep(_LOOK_S)
                await asyncio.sleep(max(0.0, end - time.monotonic()))
                if name == "API":  # until it is back there is nobody else to kill
                    await self._kill_api()
                    end = max(end, time.monotonic() - every_s / len(names))

    def _kill(self, name: str) -> bool:
        for pid in descendants(self._pid):
            if _MODULES[name] in _command_line(pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    self.kills[name] += 1
                return True
        return False

    async def _kill_api(self) -> None:
        assert self._process is not None
        children = descendants(self._pid)
        self._process.kill()
        self._process.wait()
        self.kills["API"] += 1
        try:
            await self._look_for_orphans(children)
        finally:
            self.start()
        await self.until_ready()

    async def _look_for_orphans(self, children: Sequence[int]) -> None:
        left: list[str] = []
        for _ in range(int(ORPHAN_S / _POLL_S)):
            left = [f"process {pid}" for pid in children if _lives(pid)]
            left += [f"folder {path.name}" for path in self._temporary.glob("sightline-*")]
            if not left:
                break
            await asyncio.sleep(_POLL_S)
        if left:
            self.complaints.append(f"{ORPHAN_S:g} s after a kill of the API process there was still {', '.join(left)}")

    @property
    def _pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(60)
            if self._process.poll() is None:
                self.complaints.append("the server did not end within 60 s of SIGTERM")
                self._process.kill()
                self._process.wait()
        if (at := self.log.find("Traceback (most recent call last)")) >= 0:
            self.complaints.append(f"the server's log has a traceback: …{self.log[at : at + 2000]}")


def descendants(pid: int) -> list[int]:
    """Living processes under a process."""
    parents: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # a process that has ended
            state, parent = path.read_text().rsplit(")", 1)[1].split()[:2]
            if state != "Z":
                parents.setdefault(int(parent), []).append(int(path.parent.name))
    found = [pid]
    for process in found:
        found += parents.get(process, [])
    return found[1:]


def _lives(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    return False


def _command_line(pid: int) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""
