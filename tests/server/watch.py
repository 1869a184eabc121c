"""Watches a server while it is maltreated: /health always answers, and soon; afterwards nothing is left behind."""

import contextlib
import json
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from server import health_poller
from server.media import image_part, jpeg, png, text_part
from server.running import ADMIN, RunningServer, wait_for
from sightline.processors import available_processors

HEALTH_S = 0.1  # the 99th of 100 answers of /health, less the time in which the machine had no processor for it
_FILES = 4  # open files and threads that may be made on first use, in spite of the warm-up
_THREADS = 10 + available_processors()  # one that decodes for each, made when there is work for it
_MEMORY_MB = 200


@dataclass(frozen=True)
class Held:
    """What a server holds when it has nothing to do and its caches are empty."""

    files: tuple[int, int]  # of the API process, of the engine
    threads: tuple[int, int]
    memory_mb: tuple[float, float]
    children: int  # processes under the API process
    left: tuple[str, ...]  # temporary files, and shared memory of our making
    pages: int
    embedding_bytes: int
    inflight: tuple[int, int]  # requests, bytes

    @classmethod
    def by(cls, server: RunningServer) -> "Held":
        server.until_idle()
        response = server.http.post("/flush_cache", headers={"Authorization": f"Bearer {ADMIN}"})
        assert response.status_code == 200, response.text
        stats = server.stats()
        pids = (server.process.pid, int(stats["engine_pid"]))
        return cls(
            files=_each(pids, lambda folder: len(list((folder / "fd").iterdir()))),
            threads=_each(pids, lambda folder: len(list((folder / "task").iterdir()))),
            memory_mb=_each(pids, _memory_mb),
            children=len(descendants(server.process.pid)),
            left=tuple(sorted(str(path) for path in _left(server.temporary))),
            pages=stats["pages_used"] + stats["pages_cached"],
            embedding_bytes=stats["embedding_bytes_used"],
            inflight=(stats["inflight_requests"], stats["inflight_bytes"]),
        )

    def more_than(self, before: "Held") -> list[str]:
        """What there is more of than before, beyond what is made on first use."""
        found = []
        for place, process in enumerate(("API process", "engine")):
            for noun, allowed in (("files", _FILES), ("threads", _THREADS), ("memory_mb", _MEMORY_MB)):
                now, then = getattr(self, noun)[place], getattr(before, noun)[place]
                if now > then + allowed:
                    found.append(f"{noun} of the {process}: {then} before, {now} now")
        if len(self.left) > len(before.left):
            found.append(f"left: {before.left} before, {self.left} now")
        for noun in ("children", "pages", "embedding_bytes", "inflight"):
            if getattr(self, noun) > getattr(before, noun):
                found.append(f"{noun}: {getattr(before, noun)} before, {getattr(self, noun)} now")
        return found


class Watch:
    """A block of maltreatment. Raises at its end if /health was slow or silent, or if the server holds more than before."""

    def __init__(self, server: RunningServer) -> None:
        self._server = server

    def __enter__(self) -> "Watch":
        warm_up(self._server)
        self._before = Held.by(self._server)
        command = [sys.executable, health_poller.__file__, str(self._server.port), str(self._server.process.pid)]
        self._poller = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        return self

    def __exit__(self, kind: Any, *_: object) -> None:
        out, _ = self._poller.communicate("")
        if kind is not None:
            return
        assert self._poller.returncode == 0, "/health did not answer"
        self._check_health(np.array(json.loads(out)).reshape(-1, 2))
        until_nothing_left(self._server, self._before)

    def _check_health(self, polls: np.ndarray) -> None:
        self.seconds, waited = polls.T
        own = np.maximum(self.seconds - waited, 0.0)
        if len(own) >= 20:
            slowest = float(np.quantile(own, 0.99))
            assert slowest < HEALTH_S, f"/health took {1000 * slowest:.0f} ms, the 99th of 100 answers"


def until_nothing_left(server: RunningServer, before: Held) -> None:
    """Waits until a server holds no more than it did."""
    more: list[str] = []

    def nothing_left() -> bool | None:
        more[:] = Held.by(server).more_than(before)
        return None if more else True

    try:
        wait_for(nothing_left, "nothing to be left")
    except AssertionError as error:
        names = _thread_names(int(server.stats()["engine_pid"]))
        raise AssertionError(f"{error}: {'; '.join(more)}; threads of the engine by name: {dict(names)}") from None


def _thread_names(pid: int) -> Counter[str]:
    return Counter((task / "comm").read_text().strip() for task in Path(f"/proc/{pid}/task").iterdir())


def warm_up(server: RunningServer, again: bool = False) -> None:
    """Whatever is made on first use: threads, tables, buffers."""
    if getattr(server, "is_warm", False) and not again:
        return

    def ask(number: int) -> None:
        # A body of more than a few kB, so that threads share the work. A GPU has decoders with threads of their own for JPEGs,
        # another one for those that its engines do not take.
        files = [jpeg(9000 + number), jpeg(9100 + number, progressive=True)]
        pictures = [image_part(9000 + number), *map(image_part, files)]
        server.chat([*pictures, text_part("What?")], max_tokens=4, user="x" * 10_000)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(ask, range(16)))
    server.chat([image_part(png(9000) + bytes(200_000)), text_part("What?")])  # large enough to be sent without a copy
    server.is_warm = True  # type: ignore[attr-defined]


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


def _each(pids: tuple[int, int], count: Any) -> Any:
    return tuple(count(Path(f"/proc/{pid}")) for pid in pids)


def _memory_mb(process: Path) -> float:
    lines = (process / "status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS:"))


def _left(temporary: Path) -> list[Path]:
    shared = [path for path in Path("/dev/shm").glob("*") if path.name.startswith(("sightline", "torch_", "psm_", "sem."))]
    return [*temporary.rglob("*"), *shared]
