"""Steps replayed from graphs give what steps give, whatever ran before. Red when a buffer is not rewritten or padding leaks.

On a CPU a "graph" runs the captured function again on the same buffers, which has all of a graph's dangers but the device's.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from conftest import PAGED_FAMILIES
from engine import harness
from engine.harness import Driver, driver, plain_answer, request_of, small_picture
from ops.run_again import run_again
from sightline import LLM
from sightline.errors import ConfigError
from sightline.ops.attention import attend_chunks, paged_attention
from sightline.ops.dispatch import Implementation
from sightline.ops.paged_cache import PagedCache
from sightline.ops.sequences import PagedSequences
from sightline.worker.caches import tensors_of
from sightline.worker.step_graphs import DECODING, MIXED_SEQUENCES, MIXED_TOKENS, UNEVEN, StepBucket, StepGraphs, buckets


def attention_by_device(q: torch.Tensor, cache: PagedCache, sequences: PagedSequences) -> torch.Tensor:
    """As graphs need it: lengths come from the tensors alone. Rows of nobody get nothing (not a number)."""
    out = torch.full_like(q, float("nan"))
    starts, contexts = sequences.query_starts.tolist(), sequences.context_lengths.tolist()
    assert len(sequences.query_lengths_host) == len(contexts) and max(contexts) <= max(sequences.context_lengths_host)
    for row, context in enumerate(contexts):
        part = slice(starts[row], starts[row + 1])
        if context and part.start < part.stop:
            pages = sequences.page_table[row : row + 1]
            alone = PagedSequences(pages, torch.empty(0), torch.empty(0), (part.stop - part.start,), (context,))
            attend_chunks(out[part], q[part], cache, alone)
    return out


@pytest.fixture(autouse=True)
def attention(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(
        paged_attention, "kernels", [Implementation("by device", attention_by_device, lambda *_, **__: True, True)]
    )
    yield


@pytest.fixture(params=[False, True], ids=["in turn", "overlapped"])
def overlap(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setattr(harness, "OVERLAP", request.param)
    return bool(request.param)


def captured_driver(folder: Path, **settings: Any) -> Driver:
    made = driver(folder, **settings)
    engine, runner = made.engine, made.engine.executor.worker
    limits = engine.schedule.limits
    for tensor in tensors_of(runner.caches):  # a slot that is read before it is written spoils the answer
        tensor.fill_(float("nan"))
    runner.step_graphs = StepGraphs(
        runner.model,
        runner.caches,
        runner.arena.rows,
        runner._sampled,
        run_again,
        limits.max_sequences,
        limits.max_tokens,
        engine.max_model_len,
    )
    return made


# The definitions of ops that keep states go by the host's lengths, which a graph does not have: test_every_bucket.py tries such
# steps with kernels.
@pytest.mark.parametrize("family", PAGED_FAMILIES)
@pytest.mark.parametrize("tokens_per_step", [7, 40, 512])
def test_answers_are_the_plain_loops(
    tiny_checkpoints: dict[str, Path], family: str, tokens_per_step: int, overlap: bool
) -> None:
    folder = tiny_checkpoints[family]
    run = captured_driver(folder, max_num_batched_tokens=tokens_per_step, max_num_seqs=12)
    first, second = small_picture(1), small_picture(2, 60, 130)
    requests = [
        request_of(folder, "One ", first, " two ", second, " three"),
        request_of(folder, first, "What is this?"),
        request_of(folder, "Plain text, no picture at all, and somewhat longer than the others are."),
    ] * 4  # more than eight at once, and as they end fewer and fewer
    numbers = [run.add(request, tokens=3 + place) for place, request in enumerate(requests)]
    run.run()
    for place, (number, request) in enumerate(zip(numbers, requests, strict=True)):
        assert run.tokens(number) == plain_answer(folder, request, 3 + place)
    graphs = run.engine.executor.worker.step_graphs
    assert graphs is not None and len(graphs) >= 4, "several buckets were used"


def test_one_token_that_is_an_image_row(tiny_checkpoints: dict[str, Path], overlap: bool) -> None:
    """Red when such a step is taken for decoding, whose graphs know no rows."""
    folder = tiny_checkpoints["qwen3-vl"]
    run = captured_driver(folder, max_num_batched_tokens=1)
    request = request_of(folder, small_picture(3), "?")
    number = run.add(request)
    run.run()
    assert run.tokens(number) == plain_answer(folder, request)


def test_what_fits_no_bucket_runs_without(tiny_checkpoints: dict[str, Path], overlap: bool) -> None:
    folder = tiny_checkpoints["qwen3-vl"]
    run = captured_driver(folder, max_num_batched_tokens=4096)
    requests = [request_of(folder, letter * 1300) for letter in "xy"]
    assert sum(map(len, requests)) > MIXED_TOKENS[-1]
    numbers = [run.add(request) for request in requests]
    run.run()
    for number, request in zip(numbers, requests, strict=True):
        assert run.tokens(number) == plain_answer(folder, request)
    assert all(bucket.decoding for bucket in run.engine.executor.worker.step_graphs._graphs), "only decoding fits"


def test_large_steps_of_short_prompts_fit(tiny_checkpoints: dict[str, Path], overlap: bool) -> None:
    folder = tiny_checkpoints["qwen3-vl"]
    run = captured_driver(folder, max_num_batched_tokens=4096)
    requests = [request_of(folder, "x" * 700, small_picture(4), "y" * place) for place in (1, 300)]
    numbers = [run.add(request) for request in requests]
    run.run()
    for number, request in zip(numbers, requests, strict=True):
        assert run.tokens(number) == plain_answer(folder, request)
    found = run.engine.executor.worker.step_graphs._graphs
    assert max(bucket.tokens for bucket in found) == -(-sum(map(len, requests)) // 128) * 128 > 1024


def test_large_steps_that_gather_keys_do_not(
    tiny_checkpoints: dict[str, Path], overlap: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How many keys only the host knows. Red when such a step is replayed, which reads them in their pages."""
    monkeypatch.setattr(
        "sightline.ops.pages.GATHER_FROM", 600
    )  # the average of 1,300 queries, each with those before it, is 650
    folder = tiny_checkpoints["qwen3-vl"]
    run = captured_driver(folder, max_num_batched_tokens=4096)
    for letter, count, graphs in (("x", 1150, {1152 + 128}), ("y", 1300, set())):
        request = request_of(folder, letter * count)
        run.engine.executor.worker.step_graphs._graphs.clear()
        number = run.add(request)
        run.run()
        assert run.tokens(number) == plain_answer(folder, request)
        found = run.engine.executor.worker.step_graphs._graphs
        assert {bucket.tokens for bucket in found if not bucket.decoding} == graphs


def test_one_long_context_among_short_ones(
    tiny_checkpoints: dict[str, Path], overlap: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Red when such a step is captured for contexts of one length, or any other step for uneven ones."""
    monkeypatch.setattr("sightline.worker.step_graphs._LONG", 256)
    folder = tiny_checkpoints["qwen3-vl"]
    run = captured_driver(folder, max_num_batched_tokens=2048, max_num_seqs=12)
    requests = [request_of(folder, letter * (900 if letter == "a" else 3)) for letter in "abcdefghi"]
    numbers = [run.add(request, tokens=6) for request in requests]
    run.run()
    for number, request in zip(numbers, requests, strict=True):
        assert run.tokens(number) == plain_answer(folder, request, 6)
    used = run.engine.executor.worker.step_graphs._graphs
    assert {bucket for bucket in used if bucket.decoding} == {StepBucket(16, 16, True, uneven=True)}
    items = used[StepBucket(16, 16, True, uneven=True)][0].on_device(torch.empty(0), (1,) * 16, 2048)["split_kv"]
    assert items.first.tolist()[1] > 1 and items.first.tolist()[9:] == [items.first.tolist()[9]] * 8, "nobody has the rest"
    assert items.sequence.tolist()[: items.first[9]] == sorted(items.sequence.tolist()[: items.first[9]])
    even = [run.add(request_of(folder, letter * 3), tokens=6) for letter in "jklmnopqr"]
    run.run()
    assert all(run.tokens(number) for number in even)
    assert {bucket for bucket in used if bucket.decoding} == {StepBucket(16, 16, True, uneven=True), StepBucket(16, 16, True)}


def test_buckets() -> None:
    every = buckets(256, 8192)
    assert {bucket.sequences for bucket in every if bucket.decoding} == set(DECODING)
    assert {bucket.tokens for bucket in every if not bucket.decoding} == set(MIXED_TOKENS)
    assert all(bucket.sequences in MIXED_SEQUENCES for bucket in every if not bucket.decoding)
    assert every[0] == StepBucket(2304, 64, False) and every[-1] == StepBucket(1, 1, True)
    assert len([bucket for bucket in every if bucket.tokens > 1024]) == 10, "large ones for up to 64 sequences only"
    assert {bucket.sequences for bucket in every if bucket.uneven} == set(UNEVEN) and all(
        bucket.decoding for bucket in every if bucket.uneven
    )
    few = buckets(3, 40)
    assert not any(bucket.uneven for bucket in few), "so few are split into many parts anyway"
    assert {bucket.sequences for bucket in few if bucket.decoding} == {1, 2, 4}
    assert max(bucket.tokens for bucket in few) == 64


def test_graphs_need_a_gpu(tiny_checkpoints: dict[str, Path]) -> None:
    with pytest.raises(ConfigError, match="step_graphs is on, but"):
        LLM(tiny_checkpoints["qwen3-vl"], device="cpu", step_graphs=True)
