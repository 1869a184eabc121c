"""Qwen3.5 through the engine: states beside pages. What is answered must be what the plain loop gives, however prompts are
cut, shared, evicted, preempted and aborted, and every snapshot must be the state of the tokens that it stands for."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from engine.harness import Driver, driver, loaded, made_engine, request_of, small_picture
from plain_loop import SingleSequence, encode_items
from sightline.cache.keys import page_keys, root_key
from sightline.config import EngineConfig
from sightline.engine.executor import local_worker
from sightline.models.inputs import StateCache
from sightline.schedule.snapshots import ANSWER_START_TOKENS, slot_of
from sightline.types import Request
from sightline.worker.caches import tensors_of

GRID = 64
ANSWER = 6
WORDS = "the quick brown fox jumps over the lazy dog and runs away from it all"
_known: dict[tuple[Path, bytes, bytes], list[int]] = {}


@pytest.fixture
def folder(tiny_checkpoints: dict[str, Path]) -> Path:
    return tiny_checkpoints["qwen3.5"]


def expected(folder: Path, request: Request, count: int = ANSWER) -> list[int]:
    key = (folder, request.token_ids.tobytes(), b"".join(item.key for item in request.items))
    if len(_known.get(key, ())) < count:
        llm = loaded(folder)
        plain = SingleSequence(llm.model, request, len(request) + count, page_size=16)
        logits, tokens = plain.prefill(encode_items(llm.model, request, llm.processor)), []
        while len(tokens) < count:
            tokens.append(int(logits[0].argmax()))
            logits = plain.decode(tokens[-1])
        _known[key] = tokens
    return _known[key][:count]


def spoilt(made: Driver) -> Driver:
    """What is read before it is written, of pages or states, spoils the answer."""
    for tensor in tensors_of(local_worker(made.engine.executor).caches):
        tensor.fill_(float("nan"))
    return made


def hybrid(folder: Path, **settings: object) -> Driver:
    return spoilt(driver(folder, **{"page_size": 16, **settings}))


def answer(made: Driver, request: Request, count: int = ANSWER, answer_returns: bool = False) -> tuple[list[int], int]:
    """Tokens, and how many of the prompt's were cached."""
    number = made.add(request, count)
    for one in made.engine._requests[number]:
        one.sequence.answer_returns = answer_returns
    made.run()
    assert not made.errors
    return made.tokens(number), made.completions[number, 0].cached_tokens


def text_of(folder: Path, tokens: int, seed: int = 0) -> Request:
    """A prompt of exactly so many tokens, without a template."""
    ids = np.random.default_rng(seed).integers(97, 122, tokens).astype(np.int32)
    return with_ids(request_of(folder, "any"), ids)


def with_ids(request: Request, ids: np.ndarray) -> Request:
    positions = np.broadcast_to(np.arange(len(ids), dtype=np.int32), (3, len(ids))).copy()
    return dataclasses.replace(request, token_ids=ids, positions=positions, position_delta=0)


def continued(request: Request, *more: list[int]) -> Request:
    return with_ids(request, np.concatenate((request.token_ids, *more)).astype(np.int32))


def check_snapshots(made: Driver, folder: Path, texts: list[Request]) -> int:
    """Every snapshot is the state after its tokens, worked out from the first one on. Returns how many there are."""
    pages, size = made.engine.schedule.pages, made.engine.config.page_size
    caches = [cache for cache in local_worker(made.engine.executor).caches if isinstance(cache, StateCache)]
    model, checked = loaded(folder).model, set()
    for text in texts:
        keys = page_keys(text.token_ids, (), (), size, root_key("salt "))
        for depth, node in enumerate(pages.match(keys), start=1):
            if node.state is None or node.key in checked:
                continue
            checked.add(node.key)
            plain = SingleSequence(model, with_ids(text, text.token_ids[: depth * size]), depth * size, size)
            plain.prefill(None)
            right = [cache for cache in plain.caches if isinstance(cache, StateCache)]
            for found, wanted in zip(caches, right, strict=True):
                for of_found, of_wanted in zip(found.tensors, wanted.tensors, strict=True):
                    torch.testing.assert_close(of_found[slot_of(node)], of_wanted[0], atol=2e-5, rtol=1e-4)
    states = made.engine.schedule.states
    assert states is not None and len(checked) * states.state_bytes == pages.state_bytes, "a snapshot of something else"
    return len(checked)


# ---- Cut, packed, in every order


@pytest.mark.parametrize(
    "sizes", [(3, 65, 200), pytest.param((*range(1, 20), *range(60, 70)), marks=pytest.mark.slow)], ids=str
)
def test_chunks_of_every_size(folder: Path, sizes: tuple[int, ...], overlap: bool) -> None:
    """Red if a state or the convolution's last inputs are not carried from chunk to chunk, are taken twice, or are mixed up
    between sequences of a step, whose tails may be a single token."""
    requests = [request_of(folder, WORDS, small_picture(3), WORDS), request_of(folder, small_picture(5), "a word")]
    requests += [text_of(folder, tokens) for tokens in (1, 2, 65, 129)]
    for size in sizes:
        made = hybrid(folder, max_num_batched_tokens=size)
        numbers = [made.add(request, ANSWER) for request in requests]
        made.run()
        assert [made.tokens(number) for number in numbers] == [expected(folder, request) for request in requests], size


# ---- Hits


@pytest.mark.parametrize("page_size", [16, 24])
def test_hits_at_every_depth(folder: Path, page_size: int, overlap: bool) -> None:
    """A snapshot every 64 tokens, and prompts that share any part of it. Red if a hit resumes from a state of another length,
    takes a token twice, or if a short prompt never hits; with pages of 24 the grid is 192."""
    made = hybrid(folder, page_size=page_size)
    states = made.engine.schedule.states
    assert states is not None
    states.interval = states.grid
    long = text_of(folder, 450)
    asked = [long]
    assert answer(made, long) == (expected(folder, long), 0)
    for shared in (63, 64, 65, 100, 129, 192, 200, 384, 400, 450):
        request = with_ids(long, np.concatenate((long.token_ids[:shared], text_of(folder, 30, seed=shared).token_ids)))
        asked.append(request)
        tokens, cached = answer(made, request)
        assert tokens == expected(folder, request)
        assert cached == min(shared, 450 - ANSWER_START_TOKENS) // states.grid * states.grid, shared
    tokens, cached = answer(made, long)
    assert tokens == expected(folder, long) and cached == 449 // states.grid * states.grid  # left by the longest of them
    if page_size == 16:
        assert check_snapshots(made, folder, asked) >= 6


def test_same_picture_another_question(folder: Path, overlap: bool) -> None:
    """Red if no snapshot is left within an image: then only the third question of a picture hits."""
    made = hybrid(folder)
    picture = small_picture(7, 512, 512)
    first, second = (request_of(folder, picture, WORDS + question) for question in ("one?", "two, and more words?"))
    answer(made, first)
    _, cached = answer(made, request_of(folder, picture, "something else " * 9))
    end = first.spans[-1].start + first.spans[-1].count
    assert cached == end // GRID * GRID > first.spans[0].start
    assert answer(made, second)[0] == expected(folder, second)


def test_a_tool_loop_hits_within_the_answer(folder: Path, overlap: bool) -> None:
    """One snapshot goes along with an answer that comes back, also past its end, which overlap finds too late. Red if the next
    prompt computes the answer again, if more than one snapshot of it stays, or one holds what was computed in vain."""
    prompt = text_of(folder, 100)
    count = 110
    for ends_after in (None, 28, 92):
        made = hybrid(folder, kv_cache_gb=0.02)
        wanted = expected(folder, prompt, count)
        ends = frozenset() if ends_after is None else frozenset({wanted[ends_after - 1]})
        if ends_after is not None:
            ends_after = wanted.index(wanted[ends_after - 1]) + 1
        number = made.add(prompt, count, end_tokens=ends)
        made.engine._requests[number][0].sequence.answer_returns = True
        made.run()
        told = made.tokens(number)
        assert told == wanted[: ends_after or count]
        back = continued(prompt, told, list(range(97, 117)))
        computed = len(prompt) + len(told) - (not overlap or ends_after is None)  # the last token only in vain
        assert check_snapshots(made, folder, [continued(prompt, told)]) == 1 + (computed >= 2 * GRID)
        tokens, cached = answer(made, back)
        assert tokens == expected(folder, back)
        assert cached == computed // GRID * GRID
        check_snapshots(made, folder, [back])


# ---- Memory that is short


def test_snapshots_evicted_alone(folder: Path, overlap: bool) -> None:
    """Red if a prefix whose pages are there and whose state has gone is resumed, or the loss is not counted."""
    made, request = hybrid(folder), text_of(folder, 300)
    answer(made, request)
    while made.engine.schedule.pages.evict_state():
        pass
    states = made.engine.schedule.states
    assert states is not None and states.tokens_lost == 0 and made.engine.schedule.pages.tree_pages > 15
    assert answer(made, request) == (expected(folder, request), 0)
    assert states.tokens_lost == 299 // GRID * GRID
    assert answer(made, request)[1] == (300 - ANSWER_START_TOKENS) // GRID * GRID


def test_pages_evicted_alone(folder: Path, overlap: bool) -> None:
    """Pages are short and slots are not. Red if a snapshot outlives its pages, or keeps its slot."""
    size = 34 * 16 * loaded(folder).spec.text.token_bytes(4) / 1024**3
    config = EngineConfig(kv_cache_gb=size, embedding_cache_gb=0.02, page_size=16, overlap=overlap, state_cache_gb=0.05)
    made = spoilt(made_engine(loaded(folder), config, 500))
    requests = [text_of(folder, 400, seed) for seed in range(4)]
    for request in (*requests, *requests):
        assert answer(made, request)[0] == expected(folder, request)
    pages, states = made.engine.schedule.pages, made.engine.schedule.states
    assert pages.evictions > 0 and pages.state_evictions == 0 and states is not None
    assert check_snapshots(made, folder, requests) >= 1


def test_few_slots_and_preemption(folder: Path, overlap: bool) -> None:
    """Two snapshots, and pages for two of four: red if a slot is overwritten while somebody goes on from it, or a sequence that
    lost its place goes on from what it left in its slot."""
    longest, count = 256, 24
    state = loaded(folder).spec.text.state_bytes(4)
    size = (longest + 8) * loaded(folder).spec.text.token_bytes(4) / 1024**3
    config = EngineConfig(
        kv_cache_gb=size, embedding_cache_gb=0.02, page_size=4, overlap=overlap, state_cache_gb=2.5 * state / 1024**3
    )
    made = spoilt(made_engine(loaded(folder), config, longest))
    requests = [text_of(folder, 110, seed) for seed in range(4)]
    numbers = [made.add(request, count) for request in requests]
    for number in numbers[::2]:
        made.engine._requests[number][0].sequence.answer_returns = True
    made.run()
    assert [made.tokens(number) for number in numbers] == [expected(folder, request, count) for request in requests]
    assert made.engine.schedule.preemptions > 0


# ---- Several answers, and none


def test_several_answers(folder: Path, overlap: bool) -> None:
    """Red if those that follow a leader start from its state after it has gone on."""
    made, request = hybrid(folder), request_of(folder, WORDS, small_picture(3), WORDS)
    number = made.add(request, ANSWER, n=3)
    made.run()
    assert [made.tokens(number, index) for index in range(3)] == [expected(folder, request)] * 3


@pytest.mark.parametrize("steps", [0, 1, 2, 4, 6])
def test_abort_in_each_state(folder: Path, steps: int, overlap: bool) -> None:
    """Waiting, in the midst of a prompt, resuming from a snapshot, decoding. Red if a slot or a pin is lost, or the other
    request's answer changes."""
    made = hybrid(folder, max_num_batched_tokens=70)
    first, other = text_of(folder, 200), text_of(folder, 150, seed=1)
    answer(made, first)
    doomed, stays = made.add(continued(first, list(range(97, 117))), 40), made.add(other, ANSWER)
    made.engine._requests[doomed][0].sequence.answer_returns = True
    for _ in range(steps):
        made.step()
    assert made.engine.abort(doomed)
    made.run()
    assert made.tokens(stays) == expected(folder, other)
    schedule = made.engine.schedule
    assert schedule.states is not None and schedule.pages.total_locks == 0
    slots = len(schedule.states.free)
    schedule.pages.clear()
    assert schedule.pages.state_bytes == 0 and len(schedule.states.free) >= slots
    memory = made.engine.executor.facts.memory
    assert len(schedule.states.free) == memory.state_slots - made.engine.config.max_num_seqs - 1
