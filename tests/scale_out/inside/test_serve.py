"""Replicas of Ray Serve with the embedded model, on loopback."""

import base64
import concurrent.futures
import contextlib
import dataclasses
import io
import os
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest
from PIL import Image

from sightline.config import Config, EngineConfig, ModelConfig, ServerConfig

ADMIN = "admin"
PATIENCE_S = 120.0


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


PORT = free_port()
URL = f"http://127.0.0.1:{PORT}"


def config(**server: Any) -> Config:
    return Config(
        model=ModelConfig(device="cpu"),
        engine=EngineConfig(decode_threads=1, cpu_threads=1, max_num_seqs=8),
        server=ServerConfig(
            **{"admin_api_key": ADMIN, "restart_backoff_s": 0.2, "max_restarts": 1, "drain_timeout_s": 20.0, **server}
        ),
    )


@pytest.fixture(scope="module")
def two(ray_here: Any) -> Iterator[None]:
    """Two replicas."""
    deploy(config(), replicas=2)
    until(lambda: len(replica_ids()) == 2)
    yield
    from ray import serve

    serve.shutdown()


def deploy(made: Config, replicas: int, **scaling: Any) -> None:
    from sightline.ray import Resources, Scaling, run

    run(made, Scaling(**{"min_replicas": replicas, "max_replicas": replicas, **scaling}), Resources(num_cpus=0.5), port=PORT)


def until(check: Callable[[], Any], patience_s: float = PATIENCE_S) -> Any:
    end = time.monotonic() + patience_s
    while True:
        with contextlib.suppress(httpx.HTTPError):
            if found := check():
                return found
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.2)


def replica_ids() -> set[str]:
    """Those that answer now, each asked by a connection of its own."""
    return {httpx.get(f"{URL}/ready").headers.get("x-replica-id", "") for _ in range(8)} - {""}


def running_replicas() -> int:
    from ray import serve

    return int(serve.status().applications["sightline"].deployments["Replica"].replica_states.get("RUNNING", 0))


def image(seed: int, side: int = 48) -> dict[str, Any]:
    pixels = np.random.default_rng(seed).integers(0, 255, (side, side, 3), np.uint8)
    written = io.BytesIO()
    Image.fromarray(pixels).save(written, "png")
    url = "data:image/png;base64," + base64.b64encode(written.getvalue()).decode()
    return {"type": "image_url", "image_url": {"url": url}}


def body(seed: int, text: str = "What is it?", **fields: Any) -> dict[str, Any]:
    content = [{"type": "text", "text": text}, image(seed)]
    return {"messages": [{"role": "user", "content": content}], "max_tokens": 4, "temperature": 0, **fields}


def ask(seed: int, text: str = "What is it?", **fields: Any) -> httpx.Response:
    return httpx.post(f"{URL}/v1/chat/completions", json=body(seed, text, **fields), timeout=PATIENCE_S)


def test_answers_are_those_of_the_library(two: None) -> None:
    """Whole and as a stream, to the client that most have."""
    from sightline import LLM, SamplingParams

    client = openai.OpenAI(base_url=f"{URL}/v1", api_key="unused", max_retries=0)
    messages: Any = body(1)["messages"]
    fields: Any = {"model": "sightline-embedded", "messages": messages, "max_tokens": 12, "temperature": 0}
    whole = client.chat.completions.create(**fields).choices[0].message.content
    streamed = "".join(chunk.choices[0].delta.content or "" for chunk in client.chat.completions.create(stream=True, **fields))
    with LLM(device="cpu") as llm:
        expected = llm.chat(messages, SamplingParams(max_tokens=12, temperature=0)).text
    assert whole == streamed == expected and expected
    refused = httpx.post(f"{URL}/v1/chat/completions", json={"messages": []})
    assert refused.status_code == 400 and refused.json()["error"]["message"]


def test_every_image_is_at_its_owner(two: None) -> None:
    """Twenty images, three questions of other lengths each, no headers. Red when one is ever answered by another replica."""
    found: dict[int, set[str]] = {}
    for round in range(3):
        for seed in range(20):
            response = ask(seed, "?" * (1 + 700 * round), max_tokens=1)
            assert response.status_code == 200, response.text
            found.setdefault(seed, set()).add(response.headers["x-replica-id"])
    assert [seed for seed, replicas in found.items() if len(replicas) != 1] == []
    spread = Counter(next(iter(replicas)) for replicas in found.values())
    assert len(spread) == 2 and min(spread.values()) >= 3


def test_large_images_go_to_their_owner_too(two: None) -> None:
    """Of 2 MB, of which the router sees 32 KB."""
    for seed in (1, 2):
        large = image(seed, side=800)
        texts = ("Look.", "Look once more, and more closely.")
        bodies = [
            {"messages": [{"role": "user", "content": [{"type": "text", "text": text}, large]}], "max_tokens": 1}
            for text in texts
        ]
        answers = [httpx.post(f"{URL}/v1/chat/completions", json=one, timeout=PATIENCE_S) for one in bodies]
        assert [answer.status_code for answer in answers] == [200, 200]
        assert len({answer.headers["x-replica-id"] for answer in answers}) == 1


def test_an_owner_with_too_much_to_do_is_relieved(two: None) -> None:
    owner = ask(7, max_tokens=1).headers["x-replica-id"]
    with concurrent.futures.ThreadPoolExecutor(24) as pool:
        answers = list(pool.map(lambda number: ask(7, f"{number}", max_tokens=200, ignore_eos=True), range(24)))
    assert all(answer.status_code == 200 for answer in answers)
    by_replica = Counter(answer.headers["x-replica-id"] for answer in answers)
    assert len(by_replica) == 2 and by_replica[owner] >= 8
    assert ask(7, max_tokens=1).headers["x-replica-id"] == owner  # as before, once it has time again


class Load:
    """Requests from several clients at once, until the block ends; none is tried again."""

    def __init__(self, clients: int = 6, **fields: Any) -> None:
        self._clients, self._fields = clients, {"max_tokens": 40, "ignore_eos": True, **fields}
        self.failed: list[str] = []
        self.answered = 0
        self._stop = threading.Event()

    def __enter__(self) -> "Load":
        self._threads = [threading.Thread(target=self._ask, args=(number,)) for number in range(self._clients)]
        for thread in self._threads:
            thread.start()
        return self

    def _ask(self, number: int) -> None:
        seed = number
        while not self._stop.is_set():
            seed += self._clients
            try:
                response = ask(seed, **self._fields)
            except httpx.HTTPError as error:
                self.failed.append(repr(error))
                continue
            if response.status_code == 200:
                self.answered += 1
            else:
                self.failed.append(f"{response.status_code} {response.text[:300]}")

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()


def pids_of_replicas() -> dict[str, tuple[int, int]]:
    """Name → process of the replica, and of its engine."""
    found = {}
    for _ in range(8):
        response = httpx.get(f"{URL}/stats", headers={"Authorization": f"Bearer {ADMIN}"})
        engine = int(response.json()["engine_pid"])
        stat = Path(f"/proc/{engine}/stat").read_text()
        found[response.headers["x-replica-id"]] = int(stat.rsplit(")", 1)[1].split()[1]), engine
    return found


@pytest.mark.parametrize("what", ["replica", "engine"])
def test_what_had_not_begun_to_answer_is_answered_by_another(two: None, what: str) -> None:
    """A process is killed under load. Red when a request fails, or the killed one is not replaced."""
    before = until(lambda: len(found := pids_of_replicas()) == 2 and found)
    with Load() as load:
        until(lambda: load.answered >= 6)
        replica, engine = before[min(before)]
        os.kill(replica if what == "replica" else engine, signal.SIGKILL)
        then = load.answered
        until(lambda: load.answered >= then + 20)
    assert load.failed == []
    now = until(lambda: len(found := pids_of_replicas()) == 2 and found)
    assert (
        replica not in [pid for pid, _ in now.values()] if what == "replica" else engine not in [pid for _, pid in now.values()]
    )


def test_a_replica_whose_engine_stays_away_is_replaced(two: None) -> None:
    """By its health check, and without a request that fails. Red when Ray takes the replica for well."""
    name = min(until(lambda: len(found := pids_of_replicas()) == 2 and found).items())
    with Load(clients=3) as load:
        while name in (found := pids_of_replicas()):  # it is started again once
            if Path(f"/proc/{found[name][1]}").exists():
                os.kill(found[name][1], signal.SIGKILL)
            time.sleep(0.5)
    assert load.failed == [] and load.answered
    until(lambda: len(pids_of_replicas()) == 2)


def test_another_configuration_is_rolled_out_under_load(two: None) -> None:
    """No request fails, a stream that runs comes to its end, and in the end all replicas are new."""
    before = until(lambda: len(found := replica_ids()) == 2 and found)
    client = openai.OpenAI(base_url=f"{URL}/v1", api_key="unused", max_retries=0, timeout=PATIENCE_S)
    stream = client.chat.completions.create(
        model="sightline-embedded", messages=[{"role": "user", "content": "Go on."}], stream=True, max_tokens=1500,
        extra_body={"ignore_eos": True},
    )  # fmt: skip
    tokens = iter(stream)
    next(tokens)
    with Load(clients=3) as load:
        deploy(config(served_model_name=("renamed",), accept_any_model_name=True), replicas=2)
        until(lambda: replica_ids().isdisjoint(before) and len(replica_ids()) == 2)
        then = load.answered
        until(lambda: load.answered > then + 5)
    assert load.failed == [] and load.answered
    last = [chunk.choices[0].finish_reason for chunk in tokens if chunk.choices][-1]
    assert last == "length"
    assert httpx.get(f"{URL}/v1/models").json()["data"][0]["id"] == "renamed"


@pytest.mark.parametrize("by", ["requests", "tokens"])
def test_replicas_come_and_go_with_the_load(two: None, by: str) -> None:
    """By requests: few are wanted of each replica. By tokens: there are pages for few answers, and requests do not count."""
    delays = {"upscale_delay_s": 0.5, "downscale_delay_s": 2.0, "look_back_period_s": 3.0}
    target = {"target_ongoing_requests": 2.0 if by == "requests" else 1000.0}
    made = config(served_model_name=(by,), accept_any_model_name=True)
    if by == "tokens":  # room for 2,096
        engine = dataclasses.replace(made.engine, kv_cache_gb=0.01)
        made = dataclasses.replace(made, model=ModelConfig(device="cpu", max_model_len=1000), engine=engine)
    deploy(made, replicas=1, max_replicas=2, **delays, **target)
    until(lambda: running_replicas() == 1)
    with Load(clients=8, max_tokens=300) as load:
        until(lambda: running_replicas() == 2)
    assert load.failed == []
    until(lambda: running_replicas() == 1)
