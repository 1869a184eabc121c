"""Which of several engines a request goes to."""

import asyncio
from collections import Counter
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

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
        assert choose(key, loads).engine == order[1]


def test_without_overload_the_owner_is_asked() -> None:
    """A few more at the owner than at the others are no overload; twice the average and more are."""
    key = KEYS[7]
    owner, second, *_ = rendezvous_order(key, engine_names(4))
    for load, spilled in ((0, False), (2, False), (20, True)):
        loads = [0, 0, 0, 0]
        loads[owner] = load
        found = choose(key, loads)
        assert (found.engine, found.spilled) == ((second if spilled else owner), spilled)


@given(st.lists(st.integers(0, 50), min_size=1, max_size=8), st.integers(0, 3999))
def test_nobody_is_asked_who_is_far_behind(loads: list[int], number: int) -> None:
    found = choose(KEYS[number], list(loads))
    assert loads[found.engine] <= 1.25 * (sum(loads) + 1) / len(loads) + 2


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
