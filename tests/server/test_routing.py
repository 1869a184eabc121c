"""Which of several engines a request goes to."""

import asyncio
from collections import Counter
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.measure.routing_simulation import simulate
from sightline.config import Config, EngineConfig, ModelConfig, ServerConfig
from sightline.errors import ConfigError
from sightline.sampling_params import resolve_sampling
from sightline.server import gpus
from sightline.server.engine_client import EngineGone
from sightline.server.engine_group import RoutedAnswers
from sightline.server.errors import ApiError, unavailable
from sightline.server.protocol import ChatRequest
from sightline.server.routing import affinity_key, choose, engine_names, rendezvous_order
from sightline.server.sampling import beginning_of
from sightline.submission import Submission
from sightline.types import Request, SamplingParams

KEYS = [number.to_bytes(32) for number in range(4000)]


def test_keys_are_spread_evenly_and_stay_where_they_are() -> None:
    """Red when an engine that joins moves keys of others than its own share, or when an order depends on more than the key."""
    owners = [rendezvous_order(key, engine_names(8))[0] for key in KEYS]
    assert all(400 < count < 600 for count in Counter(owners).values())
    more = [rendezvous_order(key, engine_names(9)) for key in KEYS]
    assert all(order[0] in (owner, 8) for order, owner in zip(more, owners, strict=True))
    assert all(sorted(order) == list(range(9)) for order in more[:50])


def test_an_engine_that_is_gone_leaves_its_keys_to_the_next() -> None:
    for key in KEYS[:200]:
        order = rendezvous_order(key, engine_names(4))
        loads: list[int | None] = [0, 0, 0, 0]
        loads[order[0]] = None
        assert choose(key, loads, 256).engine == order[1]


def test_without_overload_the_owner_is_asked() -> None:
    """A few more at the owner than at the others are no overload; twice the average and more are."""
    key = KEYS[7]
    owner, second, *_ = rendezvous_order(key, engine_names(4))
    for load, spilled in ((0, False), (2, False), (20, True)):
        loads = [0, 0, 0, 0]
        loads[owner] = load
        found = choose(key, loads, 256)
        assert (found.engine, found.spilled) == ((second if spilled else owner), spilled)


@given(st.lists(st.integers(0, 50), min_size=1, max_size=8), st.integers(0, 3999), st.integers(1, 60))
def test_nobody_is_asked_who_is_far_behind(loads: list[int], number: int, sequences: int) -> None:
    """Nor one where a request would have to wait while another engine would begin with it."""
    load = loads[choose(KEYS[number], list(loads), sequences).engine]
    average = (sum(loads) + 1) / len(loads)
    assert load <= max(1.5 * average, average + 3 * average**0.5) + 2
    assert load < sequences if min(loads) < sequences else load <= 1.1 * average + 1


def test_chance_alone_moves_nobody() -> None:
    """Requests come and go at random, with room everywhere. Red when the bound is so tight that one in a hundred spills."""
    random = np.random.default_rng(0)
    for average in (1, 4, 16, 64):
        spilled = sum(choose(KEYS[number], random.poisson(average, 8).tolist(), 256).spilled for number in range(4000))
        assert spilled <= 40, (average, spilled)


@pytest.mark.parametrize(("sequences", "share"), [(4, 0.7), (4, 0.85), (16, 0.3), (64, 0.3), (64, 0.95), (256, 0.3)])
def test_the_targets_of_routing_hold(sequences: int, share: float) -> None:
    """Half of all requests with one image: the slowest take no more than 1.5 times as long as in perfect balance. Without
    overload, 99 of 100 find their image where it was."""
    found = simulate(8, sequences, share, requests=4000)
    assert found.ratio <= 1.5, found
    if share == 0.3:
        assert found.spilled_evenly <= 0.01, found


def of(ids: list[int], affinity: bytes = b"", salt: str = "") -> Submission:
    tokens = np.array(ids)
    request = Request(tokens, np.zeros((3, len(ids)), np.int32), 0, (), ())
    return Submission(request, resolve_sampling(SamplingParams(), {}), affinity=affinity, cache_salt=salt)


def test_what_begins_alike_has_one_key_within_a_tenant() -> None:
    assert affinity_key([of([1, 2], b"turn")]) == affinity_key([of([1, 2, 3], b"turn")])
    assert affinity_key([of([1, 2], b"turn")]) != affinity_key([of([1, 2], b"turn", salt="other")])
    assert affinity_key([of([1, 2])]) != affinity_key([of([1, 3])])


def test_each_engine_gets_gpus_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(gpus.VARIABLE, "2,3,5,7")

    def config(engines: int, each: int, device: str = "auto") -> Config:
        return Config(
            model=ModelConfig(device=device),
            engine=EngineConfig(tensor_parallel_size=each),
            server=ServerConfig(data_parallel_size=engines),
        )

    assert gpus.gpus_of_engines(config(2, 2)) == ["2,3", "5,7"]
    assert gpus.gpus_of_engines(config(2, 1, "cuda:0")) == [None, None]
    with pytest.raises(ConfigError, match="data_parallel_size is 3 with 2 GPUs each, but this machine shows 4"):
        gpus.gpus_of_engines(config(3, 2))


def test_the_rounds_of_a_conversation_begin_alike() -> None:
    def beginning(*contents: Any) -> bytes:
        roles = ("system", "user", "assistant", "user")
        messages = [{"role": role, "content": content} for role, content in zip(roles, contents, strict=False)]
        return beginning_of(msgspec.convert({"messages": messages}, ChatRequest).messages)

    first = beginning("Be short.", [{"type": "text", "text": "Hello"}])
    assert beginning("Be short.", [{"type": "text", "text": "Hello"}], "Hi.", "And now?") == first
    assert beginning("Be short.", [{"type": "text", "text": "Good day"}]) != first
    assert beginning("Be long.", [{"type": "text", "text": "Hello"}]) != first


class _Gone:
    """News of an engine that dies at once."""

    async def batches(self) -> Any:
        raise EngineGone
        yield

    def release(self) -> None: ...


class _Group:
    """Two engines, of which so many can still be asked."""

    def __init__(self, left: int) -> None:
        self.left, self.loads = left, [0, 0]

    def route(self, prompts: Any) -> tuple[int, Any]:
        if not self.left:
            raise unavailable("Nobody is there.")
        self.left -= 1
        self.loads[self.left] += 1
        return self.left, _Gone()

    def note_end(self, engine: int) -> None:
        self.loads[engine] -= 1


@pytest.mark.parametrize(("engines", "kind"), [(1, ApiError), (2, EngineGone)])
def test_a_request_that_is_lost_is_counted_out_once(engines: int, kind: type[Exception]) -> None:
    """Red when an engine's load falls below nothing, which would send it what others should get."""
    group = _Group(engines)

    async def ask() -> None:
        answers = RoutedAnswers(group, [of([1])])  # type: ignore[arg-type]
        try:
            async for _ in answers.batches():
                pass
        finally:
            answers.release()

    with pytest.raises(kind):
        asyncio.run(ask())
    assert group.loads == [0, 0]


class _Tells:
    """News of an engine that dies after some, or lives."""

    def __init__(self, told: int, dies: bool) -> None:
        self.told, self.dies = told, dies

    async def batches(self) -> Any:
        for number in range(self.told):
            yield [(0, number)]
        if self.dies:
            raise EngineGone

    def release(self) -> None: ...


class _Engines(_Group):
    """Each is asked in turn."""

    def __init__(self, *queues: _Tells) -> None:
        super().__init__(len(queues))
        self.queues, self.loads = list(queues), [0] * len(queues)

    def route(self, prompts: Any) -> tuple[int, Any]:
        assert len(prompts) == 1, "the prompt is gone"
        engine, _ = super().route(prompts)
        return engine, self.queues.pop(0)


@pytest.mark.parametrize("whole", [True, False])
def test_what_the_client_has_not_seen_is_begun_anew_once(whole: bool) -> None:
    """Red when the news of a dead engine stay in a whole answer, or a stream's first tokens are told twice."""
    group, found = _Engines(_Tells(3, dies=True), _Tells(2, dies=False)), list[int]()

    async def ask() -> None:
        answers = RoutedAnswers(group, [of([1])], found.clear if whole else None)  # type: ignore[arg-type]
        try:
            async for batch in answers.batches():
                found.extend(number for _, number in batch)  # type: ignore[misc]
        finally:
            answers.release()

    if whole:
        asyncio.run(ask())
        assert found == [0, 1]
    else:
        with pytest.raises(EngineGone):
            asyncio.run(ask())
        assert found == [0, 1, 2]
    assert group.loads == [0, 0]


def test_a_whole_answer_is_begun_anew_no_more_than_once() -> None:
    group = _Engines(_Tells(1, dies=True), _Tells(1, dies=True), _Tells(1, dies=False))

    async def ask() -> None:
        async for _ in RoutedAnswers(group, [of([1])], lambda: None).batches():  # type: ignore[arg-type]
            pass

    with pytest.raises(EngineGone):
        asyncio.run(ask())
    assert len(group.queues) == 1
