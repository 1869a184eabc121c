"""`torchrun --nproc-per-node 2 -m sightline serve`: one server over ranks that torchrun has started, on loopback."""

import contextlib
import os
import signal
from pathlib import Path

import pytest

from server.running import SERVE, RunningServer, process_exists, running, wait_for
from server.test_ranks import QUESTION, text_of
from server.watch import descendants
from server.wire import exchange, request

pytestmark = pytest.mark.slow
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "sightline", "serve")
FLAGS = ("--dtype", "float32", "--restart-backoff-s", "0.5", "--kv-cache-gb", "0.1")


def workers(server: RunningServer) -> dict[int, int]:
    """Their parents by their pids."""
    found = {}
    for pid in descendants(server.process.pid):
        with contextlib.suppress(OSError):
            if b"sightline.worker.main" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found[pid] = int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
    return found


def gone(pids: list[int]) -> bool | None:
    return None if any(process_exists(pid) for pid in pids) else True


def test_a_server_under_torchrun(tmp_path: Path) -> None:
    """Its answers, a worker of either rank that is killed, and SIGTERM. Red when ranks are started twice, the next engine does
    not get the holders' workers, a worker outlives its engine, or anything outlives torchrun."""
    (alone := tmp_path / "alone").mkdir()
    with running(alone, *FLAGS, program=SERVE) as server:
        right = text_of(exchange(server, request(QUESTION)))
    (under := tmp_path / "under").mkdir()
    with running(under, *FLAGS, program=TORCHRUN) as server:
        assert text_of(exchange(server, request(QUESTION))) == right
        engine = int(server.stats()["engine_pid"])
        first = workers(server)
        assert len(first) == 2 and list(first.values()).count(engine) == 1
        for rank, at_engine in enumerate((True, False)):
            before, engine = workers(server), int(server.stats()["engine_pid"])
            (victim,) = [pid for pid, parent in before.items() if (parent == engine) == at_engine]
            os.kill(victim, signal.SIGKILL)
            wait_for(lambda: server.http.get("/ready").status_code == 503 or None, "the death to be seen")
            server.until_ready()
            assert f"The worker process of rank {rank} of 2 was killed by signal 9;" in server.errors
            assert text_of(exchange(server, request(QUESTION))) == right
            wait_for(lambda pids=list(before): gone(pids), "the workers before to end")
            assert len(workers(server)) == 2
        every = descendants(server.process.pid)
        server.stop(signal.SIGTERM)
        wait_for(lambda: gone(every), "all to end")
        assert not list(server.temporary.glob("sightline-*"))


def test_all_end_with_torchrun(tmp_path: Path) -> None:
    with running(tmp_path, *FLAGS, program=TORCHRUN) as server:
        every = descendants(server.process.pid)
        assert len(every) >= 5  # two of torchrun's, the engine, two workers
        server.stop(signal.SIGKILL)
        wait_for(lambda: gone(every), "all to end")


def test_all_end_with_the_server(tmp_path: Path) -> None:
    """It cannot go on: torchrun ends the others and says so by its code."""
    with running(tmp_path, *FLAGS, "--max-restarts", "0", program=TORCHRUN) as server:
        every = descendants(server.process.pid)
        os.kill(int(server.stats()["engine_pid"]), signal.SIGKILL)
        assert server.process.wait(60) != 0
        assert "was killed by signal 9" in server.errors
        wait_for(lambda: gone(every), "all to end")


def test_another_number_of_ranks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="tensor_parallel_size is 4, but torchrun started 2 processes"):
        RunningServer(tmp_path, "--tensor-parallel-size", "4", program=TORCHRUN)
