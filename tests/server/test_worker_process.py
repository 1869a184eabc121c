"""A server whose worker runs in a process of its own, and what its users see when that process is killed."""

import json
import os
import re
import signal
from pathlib import Path

from server.media import image_part, text_part
from server.running import ADMIN, RunningServer, process_exists, running, wait_for
from server.watch import descendants
from server.wire import connection, exchange, request

QUESTION = {
    "messages": [{"role": "user", "content": [image_part(7), text_part("What is it?")]}],
    "max_tokens": 12,
    "temperature": 0,
    "ignore_eos": True,
}


def worker_of(server: RunningServer) -> int:
    for pid in descendants(server.process.pid):
        if b"sightline.worker.main" in Path(f"/proc/{pid}/cmdline").read_bytes():
            return pid
    raise AssertionError("there is no worker process")


def test_a_worker_that_is_killed_mid_stream(tmp_path: Path) -> None:
    """Red when the stream hangs or ends as if all was well, when the server does not say that it cannot answer, does not
    answer again after the restart, or answers otherwise; or when the old engine stays."""
    with running(tmp_path, "--worker-process", "--restart-backoff-s", "1") as server:
        before = json.loads(exchange(server, request(QUESTION)).body)["choices"][0]["message"]["content"]
        engine, worker = int(server.stats()["engine_pid"]), worker_of(server)
        with connection(server) as client:
            client.sendall(request({**QUESTION, "max_tokens": 3000, "stream": True}))
            received = b""
            while received.count(b"data: ") < 3:
                received += client.recv(4096)
            os.kill(worker, signal.SIGKILL)
            while not received.endswith(b"0\r\n\r\n"):
                piece = client.recv(65536)
                if not piece:
                    break
                received += piece
        last = re.findall(rb"data: (.*)", received)[-1]
        assert json.loads(last)["error"]["code"] == "engine_died" and b"[DONE]" not in received
        assert server.http.get("/ready").status_code == 503 and server.http.get("/health").status_code == 200
        assert exchange(server, request(QUESTION)).status == 503
        wait_for(lambda: server.http.get("/ready").status_code == 200 or None, "the next engine")
        assert json.loads(exchange(server, request(QUESTION)).body)["choices"][0]["message"]["content"] == before
        assert not process_exists(engine) and worker_of(server) != worker
        new = worker_of(server)
        server.http.post("/flush_cache", headers={"Authorization": f"Bearer {ADMIN}"})
        os.kill(int(server.stats()["engine_pid"]), signal.SIGKILL)
        wait_for(lambda: not process_exists(new) or None, "the worker to end with its engine")
