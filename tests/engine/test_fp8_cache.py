"""Keys and values in 8-bit floats: what is cached means the same however it came there, and answers stay near."""

from pathlib import Path

import pytest
import torch

from conftest import PAGED_FAMILIES
from engine.harness import Driver, driver, loaded, request_of, sized_driver, small_picture
from sightline.engine.executor import local_worker
from sightline.errors import ConfigError
from sightline.ops.paged_cache import PagedCache
from sightline.types import Request
from sightline.worker.caches import tensors_of

every_paged_family = pytest.mark.parametrize("family", PAGED_FAMILIES)


def fp8(folder: Path, **settings: object) -> Driver:
    return driver(folder, kv_cache_dtype="fp8", **settings)


def answer(run: Driver, request: Request, tokens: int = 8) -> list[int]:
    number = run.add(request, tokens)
    run.run()
    return run.tokens(number)


def log_probabilities(run: Driver, request: Request) -> list[float]:
    number = run.add(request, 1, logprobs=True, top_logprobs=5)
    run.run()
    (first,) = run.completions[number, 0].logprobs or ()
    return [value for _, value in first.top]


@every_paged_family
def test_every_chunk_size(tiny_checkpoints: dict[str, Path], family: str) -> None:
    """Red where a token reads its own chunk's keys before they are rounded: answers would depend on the cuts."""
    folder = tiny_checkpoints[family]
    request = request_of(folder, "ab", small_picture(3), "c")
    whole = answer(fp8(folder), request)
    for size in (1, 2, 5, 16, len(request) - 1):
        assert answer(fp8(folder, max_num_batched_tokens=size), request) == whole, f"chunks of {size}"


@every_paged_family
def test_prefix_hits_and_copied_pages(tiny_checkpoints: dict[str, Path], family: str) -> None:
    """Red when scales stay behind where a page is copied: who asks again goes on in a copy of a page."""
    folder = tiny_checkpoints[family]
    image = small_picture(4)
    first, second = request_of(folder, "abc", image, "one"), request_of(folder, "abc", image, "one, and more")
    alone = answer(fp8(folder, enable_prefix_caching=False), second)
    run = fp8(folder, page_size=7)
    answer(run, first)
    for cached in (14, len(second) - 1):
        number = run.add(second)
        run.run()
        assert not run.errors
        assert run.completions[number, 0].cached_tokens >= cached
        assert run.tokens(number) == alone


def test_preempted_answers_go_on(tiny_checkpoints: dict[str, Path]) -> None:
    folder = tiny_checkpoints["qwen3-vl"]
    requests = [request_of(folder, f"{number} tell me ", small_picture(number)) for number in range(4)]
    expected = [answer(fp8(folder), request, 24) for request in requests]
    run = sized_driver(folder, tokens=2 * (len(requests[0]) + 24), rows=200, kv_cache_dtype="fp8", page_size=4)
    for tensor in tensors_of(local_worker(run.engine.executor).caches):
        tensor.copy_(torch.full(tensor.shape, float("nan")))  # nothing may be read before it is written
    numbers = [run.add(request, 24) for request in requests]
    run.run()
    assert run.engine.schedule.preemptions > 0
    assert [run.tokens(number) for number in numbers] == expected


@every_paged_family
def test_answers_stay_near(tiny_checkpoints: dict[str, Path], family: str) -> None:
    """Red when scales are those of other tokens or heads, or values lose theirs: a factor of a few hundred."""
    folder = tiny_checkpoints[family]
    request = request_of(folder, "What is ", small_picture(1), " then?")
    exact, near = log_probabilities(driver(folder), request), log_probabilities(fp8(folder), request)
    assert exact != near, "nothing was rounded"
    torch.testing.assert_close(torch.tensor(near), torch.tensor(exact), atol=0.15, rtol=0.05)


def test_twice_the_tokens_fit(tiny_checkpoints: dict[str, Path]) -> None:
    folder = tiny_checkpoints["qwen3-vl"]
    plain, small = driver(folder).engine.executor.facts.memory, fp8(folder).engine.executor.facts.memory
    mixers = [layer.mixer for layer in loaded(folder).spec.text.layers]
    heads, size = mixers[0].num_kv_heads, mixers[0].head_dim  # type: ignore[union-attr]
    assert plain.page_bytes == 4 * 2 * heads * size * 4 * len(mixers)
    assert small.page_bytes == 4 * 2 * heads * (size + 4) * len(mixers)
    assert abs(small.pages * small.page_bytes - plain.pages * plain.page_bytes) < plain.page_bytes
    (cache, *_) = local_worker(fp8(folder).engine.executor).caches
    assert isinstance(cache, PagedCache) and cache.keys.dtype == torch.float8_e4m3fn
    assert sum(tensor.nbytes for tensor in cache.tensors) * len(mixers) == small.pages * small.page_bytes


def test_a_backend_that_cannot_read_them_is_refused(tiny_checkpoints: dict[str, Path]) -> None:
    with pytest.raises(ConfigError, match=r"attention_backend is 'fa4'.*in 8-bit floats"):
        fp8(tiny_checkpoints["qwen3-vl"], attention_backend="fa4")
