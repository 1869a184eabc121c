"""Decoders from elsewhere, one with recurrent states and one with experts, through the engine and a server.

What the engine answers must be what the plain loop (plain.py) does, however prompts are cut, shared, evicted and preempted.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from engine.harness import Driver, driver, loaded, made_engine, request_of, small_picture
from out_of_tree import plain
from out_of_tree.conftest import HERE
from plain_loop import encode_items
from server.running import running
from sightline.config import EngineConfig
from sightline.engine.executor import local_worker
from sightline.types import Request
from sightline.worker.caches import tensors_of

KINDS = ("recurrent", "experts")
GRID = 64  # tokens between which snapshots of states are taken
WORDS = "the quick brown fox jumps over the lazy dog and runs away from it all"
ANSWER = 6


# ---- The plain way


def plain_memory(spec: Any, weights: plain.Weights, x: torch.Tensor) -> torch.Tensor:
    """A vector at a time, from the first token on."""
    memory, last, found = torch.zeros(spec.heads, spec.head_dim, spec.head_dim), torch.zeros(spec.hidden_size), []
    for token in x:
        shifted = token + weights["shift"] * last
        q, k, v = (weights["qkv.weight"] @ shifted).view(3, spec.heads, spec.head_dim)
        fade = (weights["fade.weight"] @ shifted).sigmoid()
        for head in range(spec.heads):
            memory[head] = fade[head] * memory[head] + torch.outer(k[head], v[head])
        found.append(torch.cat([q[head] @ memory[head] for head in range(spec.heads)]))
        last = token
    return torch.stack(found) @ weights["out.weight"].T


def plain_experts(spec: Any, weights: plain.Weights, x: torch.Tensor) -> torch.Tensor:
    """A token at a time."""
    found = []
    for token in x:
        chances = (weights["router.weight"] @ token).softmax(0)
        best = chances.argsort(descending=True)[: spec.chosen]
        total = torch.zeros_like(token)
        for expert in best:
            gate, up = (weights["gate_up"][expert] @ token).chunk(2)
            total += chances[expert] / chances[best].sum() * (weights["down"][expert] @ (F.silu(gate) * up))
        found.append(total)
    return torch.stack(found)


_known: dict[tuple[Path, bytes, bytes], list[int]] = {}


@torch.inference_mode()
def expected(folder: Path, request: Request, count: int = ANSWER) -> list[int]:
    key = (folder, request.token_ids.tobytes(), b"".join(item.key for item in request.items))
    if len(_known.get(key, ())) < count:
        llm = loaded(folder)
        rows = encode_items(llm.model, request, llm.processor)
        weights = {name: weight.detach() for name, weight in llm.model.text.named_parameters()}
        own = {type(layer.mixer): plain_memory for layer in llm.spec.text.layers}
        mlps = {type(layer.mlp): plain_experts for layer in llm.spec.text.layers if hasattr(layer.mlp, "chosen")}
        empty = torch.empty(0, llm.spec.text.hidden_size)
        _known[key] = plain.greedy(llm.spec.text, weights, request, empty if rows is None else rows, count, own, mlps)
    return _known[key][:count]


# ---- Engines


def spoilt(made: Driver) -> Driver:
    """What is read before it is written, of pages or states, spoils the answer."""
    for tensor in tensors_of(local_worker(made.engine.executor).caches):
        tensor.fill_(float("nan"))
    return made


def answer(made: Driver, request: Request) -> tuple[list[int], int]:
    """Tokens, and how many of the prompt's were cached."""
    number = made.add(request, ANSWER)
    made.run()
    assert not made.errors
    return made.tokens(number), made.completions[number, 0].cached_tokens


def with_picture(folder: Path) -> Request:
    return request_of(folder, WORDS, small_picture(3), WORDS, small_picture(4))


@pytest.mark.parametrize("kind", KINDS)
def test_chunks_of_every_size(out_of_tree: dict[str, Path], kind: str, overlap: bool) -> None:
    """Red if a state is not carried from one chunk to the next, taken twice, or mixed up between sequences of a step."""
    _run_chunks(out_of_tree[kind], [1, 2, 3, 7, 31, 63, 64, 65, 66, 100, 1000])


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_chunks_that_end_at_every_offset(out_of_tree: dict[str, Path], kind: str, overlap: bool) -> None:
    _run_chunks(out_of_tree[kind], list(range(1, len(with_picture(out_of_tree[kind])) + 2)))


def _run_chunks(folder: Path, sizes: list[int]) -> None:
    long, short = with_picture(folder), request_of(folder, "a word", small_picture(5))
    for size in sizes:
        made = spoilt(driver(folder, max_num_batched_tokens=size))
        numbers = [made.add(request, ANSWER) for request in (long, short)]
        made.run()
        assert [made.tokens(number) for number in numbers] == [expected(folder, request) for request in (long, short)], size


@pytest.mark.parametrize("kind", KINDS)
def test_prefix_hits(out_of_tree: dict[str, Path], kind: str, overlap: bool) -> None:
    """Red if a hit goes on from a state that has taken the last token already, or from that of another prefix; or if nothing
    is hit where a snapshot, or a page, is there."""
    folder = out_of_tree[kind]
    made = spoilt(driver(folder))
    one, another = with_picture(folder), request_of(folder, WORDS, small_picture(3), WORDS, small_picture(4), "and more " * 20)
    longest = len(one) - 1
    assert answer(made, one) == (expected(folder, one), 0)
    tokens, cached = answer(made, one)
    assert tokens == expected(folder, one)
    assert cached == (longest // GRID * GRID if kind == "recurrent" else len(one) // 4 * 4 - (len(one) % 4 == 0))
    tokens, cached = answer(made, another)
    assert tokens == expected(folder, another)
    shared = sum(1 for _ in _common(one, another))
    assert cached == (min(shared, longest) // GRID * GRID if kind == "recurrent" else shared // 4 * 4) > 0
    assert answer(made, another)[0] == expected(folder, another)


def _common(one: Request, another: Request) -> Any:
    for first, second in zip(one.token_ids, another.token_ids, strict=False):
        if first != second:
            return
        yield first


def test_a_junction_gets_a_snapshot(out_of_tree: dict[str, Path]) -> None:
    """Two prompts part in the middle: whoever comes third finds a state there. Red if only ends of prompts are kept."""
    folder = out_of_tree["recurrent"]
    made = spoilt(driver(folder))
    start = WORDS * 3
    tails = [request_of(folder, start, ending * 10) for ending in ("one way ", "another ", "a third ")]
    parted = sum(1 for _ in _common(tails[0], tails[1])) // GRID * GRID
    assert parted > 0
    cached = []
    for request in tails:
        tokens, found = answer(made, request)
        assert tokens == expected(folder, request)
        cached.append(found)
    assert cached == [0, 0, parted]


def test_snapshots_that_make_room_for_others(out_of_tree: dict[str, Path], overlap: bool) -> None:
    """Red if a slot is overwritten while somebody goes on from it, or is lost."""
    folder = out_of_tree["recurrent"]
    state = loaded(folder).spec.text.state_bytes(4)
    made = spoilt(driver(folder, state_cache_gb=2.5 * state / 1024**3, max_num_batched_tokens=40))
    assert made.engine.schedule.states is not None and len(made.engine.schedule.states.free) == 2
    requests = [request_of(folder, WORDS * (2 + number % 3), f"number {number % 4}") for number in range(8)]
    for turn in range(2):
        numbers = [made.add(request, ANSWER) for request in requests[turn:]]
        made.run()
        assert [made.tokens(number) for number in numbers] == [expected(folder, request) for request in requests[turn:]]
    assert made.engine.schedule.pages.state_evictions > 0


@pytest.mark.parametrize("kind", KINDS)
def test_preemption(out_of_tree: dict[str, Path], kind: str, overlap: bool) -> None:
    """Red if a sequence that lost its pages goes on from the state that it left in its slot, or from none."""
    folder, longest, count = out_of_tree[kind], 256, 24
    size = (longest + 8) * loaded(folder).spec.text.token_bytes(4) / 1024**3
    config = EngineConfig(kv_cache_gb=size, embedding_cache_gb=0.02, page_size=4, overlap=overlap)
    made = spoilt(made_engine(loaded(folder), config, longest))
    requests = [request_of(folder, f"{number} {WORDS}") for number in range(4)]
    assert 2 * len(requests[0]) < longest < 3 * (len(requests[0]) + count), "two start at once, and grow"
    numbers = [made.add(request, count) for request in requests]
    made.run()
    assert [made.tokens(number) for number in numbers] == [expected(folder, request, count) for request in requests]
    assert made.engine.schedule.preemptions > 0


def test_several_answers_share_a_prompt(out_of_tree: dict[str, Path], overlap: bool) -> None:
    """Red if those that follow a leader start from its state after it has gone on."""
    folder = out_of_tree["recurrent"]
    made = spoilt(driver(folder))
    request = with_picture(folder)
    number = made.add(request, ANSWER, n=3)
    made.run()
    assert [made.tokens(number, index) for index in range(3)] == [expected(folder, request)] * 3


@pytest.mark.parametrize(("kind", "more"), [("recurrent", ("--worker-process",)), ("experts", ())])
def test_through_a_server(out_of_tree: dict[str, Path], kind: str, more: tuple[str, ...], tmp_path: Path) -> None:
    """Red if a process of the server does not find the family, or its answers over HTTP differ."""
    folder = out_of_tree[kind]
    words = WORDS * 2
    want = expected(folder, request_of(folder, words))
    flags = ("--model", str(folder), "--family-module", str(HERE / kind), "--max-model-len", "2048", "--dtype", "float32")
    with running(tmp_path, *flags, *more, "--served-model-name", "stranger") as server:
        for _ in range(2):  # the second from the prefix cache
            found = server.openai.chat.completions.create(
                model="stranger",
                messages=[{"role": "user", "content": words}],
                max_tokens=ANSWER,
                temperature=0,
                extra_body={"ignore_eos": True},
            )
            assert found.choices[0].message.content == loaded(folder).tokenizer.decode(want)
            assert found.usage is not None and found.usage.prompt_tokens == len(request_of(folder, words))
        assert found.usage.prompt_tokens_details.cached_tokens >= GRID
