"""An engine that hangs is replaced, whatever it was at; one that takes long is not. Real servers with odd engines."""

import os
import re
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from server import odd_server
from server.running import RunningServer, process_exists, running, wait_for

TIMEOUT_S = 3.0  # a process must have started within it, on a busy machine, too
LONG_S = 2 * TIMEOUT_S
FLAGS = ("--engine-timeout-s", f"{TIMEOUT_S:g}", "--restart-backoff-s", "1")


def program(behaviour: str, file: Path) -> tuple[str, ...]:
    return (odd_server.__file__, behaviour, str(file))


def ask(server: RunningServer, max_tokens: int = 2) -> httpx.Response:
    return server.post(messages=[{"role": "user", "content": "Hello"}], max_tokens=max_tokens)


def work_age(server: RunningServer) -> float:
    found = re.search(r"^sightline:engine_work_age_seconds (\S+)$", server.http.get("/metrics").text, re.MULTILINE)
    assert found is not None
    return float(found[1])


def until_not_ready(server: RunningServer) -> dict[str, object]:
    """What /ready says then."""

    def refusal() -> httpx.Response | None:
        answer = server.http.get("/ready")
        return answer if answer.status_code == 503 else None

    return dict(wait_for(refusal, "/ready to say no").json())


@pytest.fixture
def file(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "file"


def test_a_step_that_never_returns(tmp_path: Path, file: Path) -> None:
    """Red if the heartbeat of a process whose loop is stuck is enough, or if its requests are left without an answer."""
    with running(tmp_path, *FLAGS, program=program("step_never_returns", file)) as server, ThreadPoolExecutor(1) as pool:
        wait_for(lambda: work_age(server) == 0.0 or None, "an engine with nothing to do to count no age")
        asked = pool.submit(ask, server)
        wait_for(lambda: work_age(server) > 0.5 or None, "the age of the step to be counted")
        lost = asked.result(60)
        assert (lost.status_code, lost.json()["error"]["code"]) == (503, "engine_died")
        assert "no progress for" in server.errors and "at 'step'" in server.errors and "engine_timeout_s is 3" in server.errors
        assert until_not_ready(server)["message"]
        server.until_ready()
        assert ask(server).status_code == 200
        assert server.http.get("/ready").json() == {"ready": True, "engine": "ready", "restarts": 1}


@pytest.mark.parametrize("busy", [False, True], ids=["idle", "with a request"])
def test_a_process_that_is_stopped(tmp_path: Path, file: Path, busy: bool) -> None:
    """Red if only an engine with requests is judged, or /ready goes on saying yes."""
    with running(tmp_path, *FLAGS, program=program("well", file)) as server, ThreadPoolExecutor(1) as pool:
        pid = int(server.stats()["engine_pid"])
        asked = pool.submit(ask, server, 30_000) if busy else None
        if busy:
            wait_for(lambda: server.stats()["inflight_requests"] or None, "the request to come in")
        os.kill(pid, signal.SIGSTOP)
        refusal = until_not_ready(server)
        assert refusal["engine"] in ("hung", "restarting") and refusal["message"]
        if asked is not None:
            lost = asked.result(60)
            assert (lost.status_code, lost.json()["error"]["code"]) == (503, "engine_died")
        server.until_ready()
        assert not process_exists(pid) and "no heartbeat for" in server.errors
        assert ask(server).status_code == 200


@pytest.mark.parametrize(
    ("behaviour", "verdict"),
    [("load_stalls", r"no progress for [\d.]+ s .* at 'load: weights'"), ("load_keeps_the_lock", r"no heartbeat for [\d.]+ s")],
)
def test_a_load_that_hangs(tmp_path: Path, file: Path, behaviour: str, verdict: str) -> None:
    """Red if an engine that is not ready yet is not judged: the server would wait for it for ever."""
    flags = (*FLAGS, "--max-restarts", "1")
    server = RunningServer(tmp_path, *flags, program=program(behaviour, file))
    try:
        assert server.process.wait(60) == 1
        last = server.errors.splitlines()[-1]
        assert re.search(f"hung and was killed: {verdict}.*, after 1 restarts", last), last
        assert not list(server.temporary.iterdir())
    finally:
        server.stop(signal.SIGKILL)


def test_a_long_load_that_advances(tmp_path: Path, file: Path) -> None:
    """Red if the whole of a load is judged, not the time since it last advanced."""
    server = RunningServer(tmp_path, *FLAGS, program=program("load_advances", file))
    try:
        time.sleep(LONG_S)
        assert server.http.get("/ready").json()["engine"] == "starting"
        file.touch()
        server.until_ready()
        assert server.http.get("/ready").json()["restarts"] == 0
    finally:
        server.stop()


def test_a_long_decode_between_steps(tmp_path: Path, file: Path) -> None:
    """Red if an engine is judged by what it says to those who wait: nothing, while an image is decoded elsewhere."""
    with running(tmp_path, *FLAGS, program=program("decodes_for_long", file)) as server, ThreadPoolExecutor(1) as pool:
        asked = pool.submit(ask, server)
        time.sleep(LONG_S)
        assert not asked.done() and server.http.get("/ready").status_code == 200
        file.touch()
        assert asked.result(60).status_code == 200
        assert server.http.get("/ready").json()["restarts"] == 0


def test_without_a_timeout_nobody_is_judged(tmp_path: Path, file: Path) -> None:
    """Red if 0 is taken for a time."""
    with running(tmp_path, "--engine-timeout-s", "0", program=program("well", file)) as server:
        pid = int(server.stats()["engine_pid"])
        os.kill(pid, signal.SIGSTOP)
        time.sleep(1)
        os.kill(pid, signal.SIGCONT)
        assert ask(server).status_code == 200
        assert server.http.get("/ready").json()["restarts"] == 0
