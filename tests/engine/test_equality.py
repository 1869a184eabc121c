"""Whatever the schedule, the answer is the plain loop's, which is transformers' (tests/parity)."""

from pathlib import Path

import pytest

from conftest import FAMILIES, PAGED_FAMILIES
from engine.harness import driver, plain_answer, request_of, sized_driver, small_picture

every_family = pytest.mark.parametrize("family", FAMILIES)
every_paged_family = pytest.mark.parametrize("family", PAGED_FAMILIES)


def prompts(folder: Path) -> list:
    """Requests of many kinds, small."""
    first, second = small_picture(1), small_picture(2, 60, 130)
    return [
        request_of(folder, "One ", first, " two ", second, " three"),
        request_of(folder, first, "What is this?"),
        request_of(folder, "Plain text, no picture at all, and somewhat longer than the others are."),
        request_of(folder, "At the end ", second),
        request_of(folder, first, first, "Twice the same."),
    ]


@every_family
def test_every_chunk_size(tiny_checkpoints: dict[str, Path], family: str) -> None:
    """Chunks of 1, 2, … up to the whole prompt: a boundary falls at every offset of the image. Red when a chunk takes wrong
    rows, positions or slots, or when rows are let go before the last chunk that needs them."""
    folder = tiny_checkpoints[family]
    request = request_of(folder, "ab", small_picture(3), "c")
    (span,) = request.spans
    assert span.start > 0 and span.start + span.count < len(request)
    for size in range(1, len(request) + 1):
        run = driver(folder, max_num_batched_tokens=size)
        number = run.add(request)
        run.run()
        assert run.tokens(number) == plain_answer(folder, request), f"chunks of {size}"


@every_family
@pytest.mark.parametrize("page_size", [1, 3, 16, 64])
@pytest.mark.parametrize("tokens_per_step", [7, 64, 4096])
def test_many_at_once(tiny_checkpoints: dict[str, Path], family: str, page_size: int, tokens_per_step: int) -> None:
    folder = tiny_checkpoints[family]
    run = driver(folder, page_size=page_size, max_num_batched_tokens=tokens_per_step)
    requests = prompts(folder) * 2
    numbers = [run.add(request) for request in requests]
    run.run()
    for number, request in zip(numbers, requests, strict=True):
        assert run.tokens(number) == plain_answer(folder, request)


@every_paged_family
def test_prefix_hit_that_ends_inside_an_image(tiny_checkpoints: dict[str, Path], family: str) -> None:
    """Red when page keys ignore row offsets, or when rows after the hit are not encoded again."""
    folder = tiny_checkpoints[family]
    image = small_picture(4)
    first, second = request_of(folder, "abc", image, "one"), request_of(folder, "abc", image, "two, and more")
    span = first.spans[0]
    end = span.start + span.count
    inside = [size for size in range(2, 20) if span.start < (end + 1) // size * size < end]  # the end mark is equal too
    assert inside
    for size in inside:
        run = driver(folder, page_size=size)
        run.add(first)
        run.run()
        run.engine.schedule.embeddings.clear()  # so that the rows must be made again
        number = run.add(second)
        run.run()
        cached = run.completions[number, 0].cached_tokens
        assert span.start < cached < span.start + span.count, "the hit should end inside the image"
        assert run.tokens(number) == plain_answer(folder, second)
        assert run.engine.counts.encoded == 2


@every_paged_family
def test_full_hit_computes_the_last_token_only(tiny_checkpoints: dict[str, Path], family: str) -> None:
    folder = tiny_checkpoints[family]
    for padding in range(4):  # one of them fills the last page exactly
        request = request_of(folder, small_picture(5), "x" * padding)
        run = driver(folder, page_size=4)
        first = run.add(request)
        run.run()
        before = run.engine.counts.tokens
        second = run.add(request)
        run.step()
        computed = run.engine.counts.tokens - before
        assert computed == 1
        run.run()
        assert run.completions[second, 0].cached_tokens == len(request) - 1
        assert run.tokens(second) == run.tokens(first) == plain_answer(folder, request)
        assert run.engine.counts.encoded == 1


@every_family
def test_same_image_in_two_requests_is_encoded_once(tiny_checkpoints: dict[str, Path], family: str) -> None:
    folder = tiny_checkpoints[family]
    image = small_picture(6)
    requests = [request_of(folder, "First: ", image), request_of(folder, "Second, other words: ", image, "!")]
    run = driver(folder)
    numbers = [run.add(request) for request in requests]
    run.run()
    assert [run.tokens(n) for n in numbers] == [plain_answer(folder, r) for r in requests]
    assert run.engine.counts.encoded == 1


@every_paged_family
def test_preemption_and_resume(tiny_checkpoints: dict[str, Path], family: str) -> None:
    """Pages for little more than one of four requests: they take turns. Red when a preempted one loses or repeats a token."""
    folder = tiny_checkpoints[family]
    requests = [request_of(folder, word, small_picture(seed), "?") for seed, word in enumerate(("a", "bb", "ccc", "dddd"))]
    longest = max(len(request) for request in requests)
    run = sized_driver(folder, tokens=longest + 40, rows=64, page_size=2)
    numbers = [run.add(request, tokens=24) for request in requests]
    run.run()
    assert run.engine.schedule.preemptions > 0
    assert [run.tokens(n) for n in numbers] == [plain_answer(folder, r, 24) for r in requests]


@every_paged_family
def test_eviction_in_mid_prefill(tiny_checkpoints: dict[str, Path], family: str) -> None:
    """An arena for one image, pages for one request, small chunks, three requests of three images: rows and pages are evicted
    while others prefill. NaN in unwritten places would show in the answers."""
    folder = tiny_checkpoints[family]
    requests = [request_of(folder, "x", *(small_picture(10 * number + k) for k in range(3)), "end") for number in range(3)]
    rows = max(item.rows for request in requests for item in request.items)
    run = sized_driver(folder, tokens=max(map(len, requests)) + 24, rows=rows, max_num_batched_tokens=5, page_size=4)
    numbers = [run.add(request) for request in requests]
    run.run()
    assert run.engine.schedule.embeddings.evictions > 0
    assert [run.tokens(n) for n in numbers] == [plain_answer(folder, r) for r in requests]


def test_without_prefix_caching_nothing_is_shared(tiny_checkpoints: dict[str, Path]) -> None:
    folder = tiny_checkpoints["qwen3-vl"]
    request = request_of(folder, "The same words again and again.")
    for caching, expected in ((True, True), (False, False)):
        run = driver(folder, enable_prefix_caching=caching)
        for _ in range(2):
            number = run.add(request)
            run.run()
        assert (run.completions[number, 0].cached_tokens > 0) is expected


def test_a_salt_isolates(tiny_checkpoints: dict[str, Path]) -> None:
    """Red when the salt is left out of the keys."""
    folder = tiny_checkpoints["qwen3-vl"]
    request = request_of(folder, "Secret words ", small_picture(7), " of one tenant.")
    run = driver(folder)
    cached = []
    for salt in ("a", "a", "b", "b"):
        number = run.add(request, cache_salt=salt)
        run.run()
        cached.append(run.completions[number, 0].cached_tokens > 0)
    assert cached == [False, True, False, True]
    assert run.engine.counts.encoded == 1


def test_host_tier_brings_rows_back(tiny_checkpoints: dict[str, Path]) -> None:
    """Rows that fell out of the arena come back from the host: the tower does not run again, the answer is the same."""
    folder = tiny_checkpoints["qwen3-vl"]
    requests = [request_of(folder, f"Nr {seed} ", small_picture(seed)) for seed in range(20, 24)]
    rows = max(item.rows for request in requests for item in request.items)
    run = sized_driver(folder, 400, rows, embedding_host_cache_gb=0.01, enable_prefix_caching=False, lookahead_patches=0)
    for _ in range(2):
        for request in requests:
            number = run.add(request)
            run.run()
            assert run.tokens(number) == plain_answer(folder, request)
    assert run.engine.counts.encoded == len(requests)
    assert run.engine.counts.restored == len(requests)
    assert run.engine.executor.worker.arena.host_bytes <= 0.01 * 1024**3


def test_rows_lost_from_the_host_are_made_again(tiny_checkpoints: dict[str, Path]) -> None:
    """The cache may name rows that a failed step never saved. Red when such an item fails instead of being encoded."""
    folder = tiny_checkpoints["qwen3-vl"]
    requests = [request_of(folder, f"Nr {seed} ", small_picture(seed)) for seed in range(30, 32)]
    rows = max(item.rows for request in requests for item in request.items)
    run = sized_driver(folder, 400, rows, embedding_host_cache_gb=0.01, enable_prefix_caching=False, lookahead_patches=0)
    for request in (*requests, requests[0]):
        run.engine.executor.worker.arena._host.clear()
        number = run.add(request)
        run.run()
        assert run.tokens(number) == plain_answer(folder, request)
    assert run.engine.counts.restored == 0 and run.engine.counts.encoded == 3
