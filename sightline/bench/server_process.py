"""A `sightline serve` process of a benchmark's own, on a free port of the loopback interface."""

import contextlib
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import httpx

from sightline.errors import UserError

SERVE = ("sightline.cli.main", "serve", "--port", "0")
INSTANT = ("sightline.bench.instant_server",)  # its arguments are in its docstring
_POLL_S = 0.02
_STOP_S = 60.0


class ServerError(UserError):
    """The server ended, or never became ready."""


class ServerProcess:
    """Times are seconds since the process was started."""

    def __init__(
        self,
        flags: Sequence[str],
        log: Path,
        patience_s: float,
        module: Sequence[str] = SERVE,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._log, self._patience_s = log, patience_s
        command = [sys.executable, "-m", *module, *flags]
        self._started = time.perf_counter()
        with log.open("wb") as out:
            self.process = subprocess.Popen(command, stdout=out, stderr=out, stdin=subprocess.DEVNULL, env=environment)

    @property
    def age(self) -> float:
        return time.perf_counter() - self._started

    def url(self) -> str:
        """Waits until the process says where it listens."""
        while True:
            found = re.search(r"http://[\d.]+:\d+", self._log.read_text(errors="replace"))
            if found is not None:
                return found[0]
            self._wait_on("say where it listens")

    def until_ready(self) -> float:
        """Waits until it would answer; seconds that took."""
        with httpx.Client(base_url=self.url(), timeout=10) as client:
            while True:
                with contextlib.suppress(httpx.TransportError):
                    if client.get("/ready").status_code == 200:
                        return self.age
                self._wait_on("be ready")

    def load_stages(self) -> dict[str, float]:
        """Seconds of each part of the engine's start, as a server that is ready has said."""
        found = re.search(r"The model is ready on \S+ after \S+ s \((.*?)\);", self._log.read_text(errors="replace"))
        named = [stage.rpartition(" ") for stage in found[1].split(", ")] if found is not None else []
        return {name: float(seconds) for name, _, seconds in named}

    def _wait_on(self, what: str) -> None:
        code = self.process.poll()
        if code is not None or self.age > self._patience_s:
            said = self._log.read_text(errors="replace").strip().splitlines()[-5:]
            ended = f"ended with {code}" if code is not None else f"did not {what} within {self._patience_s:g} s"
            raise ServerError(f"The server {ended}: {' / '.join(said) or 'it said nothing'}")
        time.sleep(_POLL_S)

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@contextlib.contextmanager
def serving(
    flags: Sequence[str],
    patience_s: float = 600.0,
    module: Sequence[str] = SERVE,
    environment: Mapping[str, str] | None = None,
) -> Iterator[ServerProcess]:
    """A server that is being started; it is stopped at the end."""
    with tempfile.TemporaryDirectory() as folder:
        server = ServerProcess(flags, Path(folder) / "log", patience_s, module, environment)
        try:
            yield server
        finally:
            server.stop()
