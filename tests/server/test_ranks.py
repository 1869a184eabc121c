"""A server whose model is held by two ranks: the answers of one, and one clear sentence when a rank is killed, hangs or
runs out of memory. No rank is left behind."""

import contextlib
import json
import os
import re
import resource
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from server.media import image_part, png, text_part
from server.ranks import RANKS
from server.running import ADMIN, RunningServer, process_exists, running, wait_for
from server.watch import descendants
from server.wire import WireResponse, connection, exchange, request

pytestmark = pytest.mark.slow
QUESTION: dict[str, Any] = {
    "messages": [{"role": "user", "content": [image_part(7), text_part("What is it?")]}],
    "max_tokens": 12,
    "temperature": 0,
    "ignore_eos": True,
}
FLAGS = ("--restart-backoff-s", "1", "--max-restarts", "9", "--dtype", "float32", "--engine-timeout-s", "20")


def ranks_of(server: RunningServer) -> list[int]:
    """In order, because they are started in it."""
    found = []
    for pid in sorted(descendants(server.process.pid)):
        with contextlib.suppress(OSError):
            if b"sightline.worker.main" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
    return found


def text_of(answer: WireResponse) -> str:
    assert answer.status == 200, answer
    return str(json.loads(answer.body)["choices"][0]["message"]["content"])


@pytest.fixture(scope="module")
def fragile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with running(tmp_path_factory.mktemp("ranks"), *RANKS, *FLAGS) as made:
        yield made


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def stop(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)


def take_memory(pid: int) -> None:
    """What it has is all that it gets."""
    size = int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * resource.getpagesize()
    resource.prlimit(pid, resource.RLIMIT_AS, (size, size))


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (kill, r"The worker process of rank {rank} of 2 was killed by signal 9;"),
        (stop, r"Nothing has advanced on rank {rank} of 2 for [\d.]+ s, and no sign of life \(engine_timeout_s is 20\);"),
    ],
)
def test_a_rank_that_is_harmed_mid_stream(fragile: RunningServer, harm: Callable[[int], None], said: str, rank: int) -> None:
    """Red when the stream hangs or ends as if all was well, the message blames another rank, the server does not answer again
    as it did, or a rank of the first life is there in the second."""
    before = text_of(exchange(fragile, request(QUESTION)))
    told, pids, engine = len(fragile.errors), ranks_of(fragile), int(fragile.stats()["engine_pid"])
    assert len(pids) == 2
    with connection(fragile) as client:
        client.sendall(request({**QUESTION, "max_tokens": 3000, "stream": True}))
        received = b""
        while received.count(b"data: ") < 3:
            received += client.recv(4096)
        harm(pids[rank])
        while not received.endswith(b"0\r\n\r\n"):
            piece = client.recv(65536)
            if not piece:
                break
            received += piece
    last = re.findall(rb"data: (.*)", received)[-1]
    assert json.loads(last)["error"]["code"] == "engine_died" and b"[DONE]" not in received
    assert fragile.http.get("/ready").status_code == 503 and fragile.http.get("/health").status_code == 200
    refused = exchange(fragile, request(QUESTION))
    assert (refused.status, refused.error()["code"]) == (503, "engine_unavailable")
    wait_for(lambda: fragile.http.get("/ready").status_code == 200 or None, "the next engine")
    assert text_of(exchange(fragile, request(QUESTION))) == before
    assert not any(process_exists(pid) for pid in [engine, *pids])
    errors = fragile.errors[told:]
    assert re.search(said.format(rank=rank), errors), errors
    assert errors.count("restart") == 1 and "Traceback" not in errors, errors


def test_a_rank_that_is_killed_while_nothing_is_asked(fragile: RunningServer) -> None:
    """Red when the first who asks afterwards finds out."""
    before, told = text_of(exchange(fragile, request(QUESTION))), len(fragile.errors)
    fragile.until_idle()
    kill(ranks_of(fragile)[1])
    wait_for(lambda: fragile.http.get("/ready").status_code == 503 or None, "the death to be seen")
    wait_for(lambda: fragile.http.get("/ready").status_code == 200 or None, "the next engine")
    assert "rank 1 of 2 was killed by signal 9;" in fragile.errors[told:]
    assert text_of(exchange(fragile, request(QUESTION))) == before


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_runs_out_of_memory(tmp_path: Path, rank: int) -> None:
    """In its encode of a large image. Red when the others wait for it, or nobody is told which one it was."""
    with running(tmp_path, *RANKS, *FLAGS, "--max-pixels", "4000000") as server:
        before = text_of(exchange(server, request(QUESTION)))
        pids = ranks_of(server)
        take_memory(pids[rank])
        content = [image_part(png(8, 1600, 1600)), text_part("What is it?")]
        large = {**QUESTION, "messages": [{"role": "user", "content": content}]}
        answer = exchange(server, request(large))
        assert (answer.status, answer.error()["code"]) == (503, "engine_died")
        wait_for(lambda: server.http.get("/ready").status_code == 200 or None, "the next engine")
        assert text_of(exchange(server, request(QUESTION))) == before
        assert not any(process_exists(pid) for pid in pids)
        said = f"rank {rank} of 2 cannot go on: The machine has not enough memory free"
        assert said in server.errors and "Traceback" not in server.errors, server.errors


def test_the_answers_are_those_of_one_rank(tmp_path: Path, fragile: RunningServer) -> None:
    """Prefix cache, preemption, structured output, log-probabilities, several answers. Red when ranks drift apart."""
    few = ("--kv-cache-gb", "0.003", "--max-model-len", "512", "--max-num-seqs", "8", "--dtype", "float32")

    def schema(name: str) -> dict[str, Any]:
        kind = {"type": "object", "properties": {"a": {"type": "boolean"}, "b": {"enum": ["x", "y"]}}, "required": ["a", "b"]}
        return {"type": "json_schema", "json_schema": {"name": name, "schema": kind, "strict": True}}

    def bodies() -> Iterator[dict[str, Any]]:
        for number in range(10):
            content = [image_part(40 + number % 3), text_part("Say it again, at length. " * (number % 4 + 1))]
            yield {**QUESTION, "messages": [{"role": "user", "content": content}], "max_tokens": 60, "logprobs": True}
        yield {**QUESTION, "max_tokens": 60, "ignore_eos": False, "response_format": schema("form")}
        yield {**QUESTION, "temperature": 1.0, "seed": 5, "n": 2}

    found = []
    for number, flags in enumerate(((), RANKS)):
        folder = tmp_path / str(number)
        folder.mkdir()
        with running(folder, *few, *flags) as server, ThreadPoolExecutor(12) as pool:
            for _ in range(2):  # the second time with prefixes that are cached
                answers = list(pool.map(lambda body, one=server: exchange(one, request(body)), bodies()))
                assert all(answer.status == 200 for answer in answers), answers
                found.append([[choice["message"]["content"] for choice in json.loads(a.body)["choices"]] for a in answers])
            stats = server.until_idle()
            assert stats["preemptions"] > 0 and stats["prefix_tokens_found"] > 0, stats
            assert set(json.loads(found[-1][10][0])) == {"a", "b"}
    assert found[0] == found[1] == found[2] == found[3]


def test_a_rank_is_not_left_when_the_server_is_told_to_stop(tmp_path: Path) -> None:
    """SIGTERM in mid-stream: the stream ends well, the code is 0, no rank and no file stays."""
    with running(tmp_path, *RANKS) as server:
        pids = ranks_of(server)
        stream = iter(server.chat("Go on.", stream=True, max_tokens=200, extra_body={"ignore_eos": True}))
        next(stream)
        server.process.send_signal(signal.SIGTERM)
        assert [chunk.choices[0].finish_reason for chunk in stream][-1] == "length"
        assert server.process.wait(60) == 0
        assert len(pids) == 2 and not any(process_exists(pid) for pid in pids)
        assert not list(server.temporary.glob("sightline-*"))


def test_caches_are_flushed_on_all_ranks(fragile: RunningServer) -> None:
    before = text_of(exchange(fragile, request(QUESTION)))
    fragile.until_idle()
    flushed = fragile.http.post("/flush_cache", headers={"Authorization": f"Bearer {ADMIN}"})
    assert flushed.status_code == 200
    assert text_of(exchange(fragile, request(QUESTION))) == before
