"""Several engines behind one server, with real processes."""

import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from server.media import image_part, png, text_part
from server.running import RunningServer, running, wait_for


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    flags = ("--data-parallel-size", "2", "--restart-backoff-s", "0.05", "--max-restarts", "20", "--decode-threads", "1")
    with running(tmp_path_factory.mktemp("parallel"), *flags) as made:
        until_both_are_ready(made)
        yield made


def until_both_are_ready(server: RunningServer) -> None:
    wait_for(lambda: True if states(server) == ["ready", "ready"] else None, "both engines")


def states(server: RunningServer) -> list[str]:
    return [one["status"] for one in server.http.get("/server_info").json()["internal_states"]]


def counted(server: RunningServer, name: str) -> dict[str, float]:
    lines = server.http.get("/metrics").text.splitlines()
    return {line.split('"')[1]: float(line.split()[-1]) for line in lines if line.startswith(f"sightline:{name}_total{{")}


def ask(server: RunningServer, seed: int, **fields: Any) -> Any:
    return server.chat([image_part(png(seed)), text_part(f"What is it? {fields.pop('more', '')}")], **fields)


def test_an_image_goes_where_it_was(server: RunningServer) -> None:
    """Ten images, three questions each. Red when a repeat goes to another engine and is encoded again."""
    before = server.stats()["items_encoded"]
    for round in range(3):
        for seed in range(10):
            ask(server, seed, max_tokens=2, more=str(round))
    assert server.stats()["items_encoded"] - before == 10
    routed = counted(server, "engine_requests_routed")
    assert set(routed) == {"0", "1"} and sum(routed.values()) >= 30 and not counted(server, "engine_requests_spilled")
    assert sum(counted(server, "engine_embedding_hits").values()) == server.stats()["embedding_hits"]


def test_what_has_not_begun_to_answer_goes_to_another_engine(server: RunningServer) -> None:
    """An engine is killed with requests in it. Red when one is lost that had said nothing, or the server stops answering."""
    found: list[Any] = []

    def one(seed: int) -> None:
        try:
            found.append(ask(server, 100 + seed, max_tokens=1).choices[0].finish_reason)
        except Exception as error:
            found.append(error)

    threads = [threading.Thread(target=one, args=(seed,)) for seed in range(24)]
    for thread in threads:
        thread.start()
    victim = server.stats()["engine_pids"][1]
    os.kill(victim, signal.SIGKILL)
    for thread in threads:
        thread.join()
    assert all(reason in ("length", "stop") for reason in found), found
    assert server.http.get("/ready").status_code == 200
    until_both_are_ready(server)
    assert server.stats()["engine_pids"][1] != victim
    assert ask(server, 3, max_tokens=2).choices


@pytest.mark.slow
@pytest.mark.parametrize("route", ["/v1/chat/completions", "/v1/responses"])
def test_a_whole_answer_of_which_the_client_has_seen_nothing_is_begun_anew(server: RunningServer, route: str) -> None:
    """Its engine is killed while it writes. Red when the client gets an error, or tokens of the dead engine's answer."""
    body: dict[str, Any] = {
        "/v1/chat/completions": {"messages": [{"role": "user", "content": "Go on."}], "max_tokens": 1500},
        "/v1/responses": {"input": "Go on.", "max_output_tokens": 1500},
    }[route]

    def told() -> Any:
        answer = server.post(route, temperature=0, ignore_eos=True, **body)
        assert answer.status_code == 200, answer.text
        found = answer.json()
        said = found["choices"][0]["message"]["content"] if "choices" in found else found["output"][-1]["content"]
        return said, [count for name, count in found["usage"].items() if name.endswith("_tokens")]

    expected = told()
    routed = counted(server, "engine_requests_routed")
    generated = tokens_told(server)
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(told()))
    thread.start()
    owner = wait_for(lambda: moved_to(routed, counted(server, "engine_requests_routed")), "the request at an engine")
    wait_for(lambda: True if tokens_told(server) > generated else None, "its first tokens")
    os.kill(server.stats()["engine_pids"][int(owner)], signal.SIGKILL)
    thread.join()
    assert found == [expected], "another answer than the undisturbed one"
    assert sum(counted(server, "engine_requests_routed").values()) == sum(routed.values()) + 2
    until_both_are_ready(server)


def moved_to(before: dict[str, float], now: dict[str, float]) -> str | None:
    return next((engine for engine in now if now[engine] > before.get(engine, 0)), None)


def tokens_told(server: RunningServer) -> float:
    lines = server.http.get("/metrics").text.splitlines()
    return next(float(line.split()[-1]) for line in lines if line.startswith("sightline:generation_tokens_total"))


def test_a_stream_that_has_begun_is_not_begun_again(server: RunningServer) -> None:
    """Red when its first tokens are told twice."""
    stream = server.chat("Go on.", stream=True, max_tokens=4000, extra_body={"ignore_eos": True})
    with pytest.raises(openai.APIError, match="stopped while it worked"):
        for number, _ in enumerate(stream):
            if number == 1:
                for pid in server.stats()["engine_pids"]:
                    os.kill(pid, signal.SIGKILL)
    until_both_are_ready(server)
