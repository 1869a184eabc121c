"""A real `sightline serve` process on a free loopback port, for tests."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import openai

from device import DEVICE

MODEL = "sightline-embedded"
ADMIN = "the-admin-key"
SERVE = ("-m", "sightline.cli.main", "serve")
MORE_FLAGS: list[str] = []  # of every server, while a module of tests says so
PATIENCE_S = 60.0  # generous: machines that run tests are slow and busy


class RunningServer:
    def __init__(self, folder: Path, *flags: str, key: str = "unused", program: Sequence[str] = SERVE) -> None:
        self._out, self._err = folder / "stdout", folder / "stderr"
        own = ["--port", "0", "--admin-api-key", ADMIN, "--device", DEVICE]
        if DEVICE != "cpu":  # several share it
            own += ["--kv-cache-gb", "0.5", "--embedding-cache-gb", "0.1"]
        command = [sys.executable, *program, *own, *MORE_FLAGS, *flags]
        self.temporary = folder / "tmp"  # nobody else's temporary files are in it
        self.temporary.mkdir(exist_ok=True)
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(self.temporary)}
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(command, stdout=out, stderr=err, env=environment, stdin=subprocess.DEVNULL)
        self.key = key
        self.url = wait_for(self._find_url, "the server's address")
        self.http = httpx.Client(base_url=self.url, timeout=PATIENCE_S, headers={"Authorization": f"Bearer {key}"})
        self.openai = openai.OpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0, timeout=PATIENCE_S)

    def _find_url(self) -> str | None:
        if self.process.poll() is not None:
            raise AssertionError(f"the server ended with {self.process.returncode}: {self.errors}")
        found = re.search(r"http://\S+", self.errors)
        return found[0] if found else None

    @property
    def errors(self) -> str:
        return self._err.read_text(errors="replace")

    @property
    def log(self) -> list[dict[str, Any]]:
        """The lines of the request log so far."""
        return [json.loads(line) for line in self._out.read_text().splitlines() if line.startswith("{")]

    @property
    def port(self) -> int:
        return int(self.url.rsplit(":", 1)[1])

    def until_ready(self) -> "RunningServer":
        wait_for(lambda: self._is_ready() or None, "the server to be ready")
        return self

    def _is_ready(self) -> bool:
        if self.process.poll() is not None:
            raise AssertionError(f"the server ended with {self.process.returncode}: {self.errors}")
        with contextlib.suppress(httpx.TransportError):
            return self.http.get("/ready").status_code == 200
        return False

    def stats(self) -> dict[str, Any]:
        response = self.http.get("/stats", headers={"Authorization": f"Bearer {ADMIN}"})
        assert response.status_code == 200, response.text
        return dict(response.json())

    def until_idle(self) -> dict[str, Any]:
        """Waits until the engine has nothing to do and the server holds nothing; its counters then."""

        def idle() -> dict[str, Any] | None:
            stats = self.stats()
            held = ("running", "waiting", "pages_used", "inflight_requests", "inflight_bytes")
            return stats if not any(stats[name] for name in held) else None

        return wait_for(idle, "the engine to be idle")

    def chat(self, content: Any = "Hello", **fields: Any) -> Any:
        fields = {"max_tokens": 8, "temperature": 0, **fields}
        return self.openai.chat.completions.create(
            model=fields.pop("model", MODEL), messages=[{"role": "user", "content": content}], **fields
        )

    def post(self, path: str = "/v1/chat/completions", **body: Any) -> httpx.Response:
        return self.http.post(path, json=body)

    def kill_engine(self) -> int:
        pid = int(self.stats()["engine_pid"])
        os.kill(pid, signal.SIGKILL)
        return pid

    def stop(self, number: int = signal.SIGTERM) -> int:
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            return self.process.wait(PATIENCE_S)
        finally:
            if self.process.poll() is None:
                self.process.kill()
                self.process.wait()
            self.http.close()
            self.openai.close()


@contextlib.contextmanager
def running(folder: Path, *flags: str, key: str = "unused", program: Sequence[str] = SERVE) -> Iterator[RunningServer]:
    server = RunningServer(folder, *flags, key=key, program=program)
    try:
        yield server.until_ready()
    finally:
        server.stop(signal.SIGTERM)


def wait_for(find: Callable[[], Any], what: str) -> Any:
    """Calls `find` until it returns something."""
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        found = find()
        if found is not None:
            return found
        time.sleep(0.02)
    raise AssertionError(f"waited {PATIENCE_S:g} s for {what}")


def process_exists(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    try:
        return stat.read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False
