"""Items that are named by their digest alone: answered from what is cached, else refused, and no harm to anybody else."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.harness import driver, plain_answer, request_of, small_picture
from sightline.errors import MissingMediaError
from sightline.types import Request


def without_bytes(request: Request) -> Request:
    items = tuple(replace(item, ref=replace(item.ref, data=b"", source="with uuid 'a'")) for item in request.items)
    return replace(request, items=items)


def test_rows_that_are_cached_answer_it(tiny_checkpoints: dict[str, Path]) -> None:
    folder = tiny_checkpoints["qwen3-vl"]
    made = driver(folder, enable_prefix_caching=False)
    request = request_of(folder, small_picture(1), "What is it?")
    made.add(request)
    made.run()
    named = made.add(without_bytes(request))
    made.run()
    assert made.tokens(named) == plain_answer(folder, request)
    assert made.engine.counts.decoded == 1


def test_without_cached_rows_it_alone_fails(tiny_checkpoints: dict[str, Path]) -> None:
    folder = tiny_checkpoints["qwen3-vl"]
    made = driver(folder)
    request = request_of(folder, small_picture(1), "What is it?")
    other = request_of(folder, small_picture(2), "What is it?")
    named, good = made.add(without_bytes(request)), made.add(other)
    made.run()
    assert isinstance(made.errors[named], MissingMediaError) and "with uuid 'a'" in str(made.errors[named])
    assert made.tokens(good) == plain_answer(folder, other)
    assert made.engine.counts.decoded == 1, "an item without bytes is not decoded"


def test_bytes_of_another_request_serve_it(tiny_checkpoints: dict[str, Path]) -> None:
    """Whoever comes first. Red when the request that has the bytes fails because another has none."""
    folder = tiny_checkpoints["qwen3-vl"]
    request = request_of(folder, small_picture(3), "What is it?")
    for bytes_first in (True, False):
        made = driver(folder)
        pair = [request, without_bytes(request)] if bytes_first else [without_bytes(request), request]
        numbers = [made.add(one) for one in pair]
        made.run()
        assert not made.errors
        assert [made.tokens(number) for number in numbers] == [plain_answer(folder, request)] * 2


@pytest.mark.parametrize("salt", ["", "other"])
def test_who_is_past_an_image_does_not_fail_with_it(tiny_checkpoints: dict[str, Path], salt: str) -> None:
    """An image is gone from the cache, and to encode it again fails. Red when that ends an answer that has used it before, or
    a request that finds its tokens in the prefix cache."""
    folder = tiny_checkpoints["qwen3-vl"]
    made = driver(folder, page_size=4)
    request = request_of(folder, small_picture(1), "What is it?")
    first = made.add(request, tokens=8)
    made.run(until=lambda: any(sequence.computed >= len(request) for sequence in made.engine.schedule.running))
    made.engine.flush()  # its rows are gone, but not the pages that it uses

    def fails(*_: Any) -> Any:
        raise ValueError("no")

    made.engine.executor.worker.encodes.encode_patches = fails  # type: ignore[method-assign]
    second = made.add(request, tokens=8, cache_salt=salt)
    made.run()
    assert made.tokens(first) == plain_answer(folder, request)
    if salt:
        assert "no" in str(made.errors[second])
    else:
        assert made.tokens(second) == plain_answer(folder, request)
    made.engine.check_integrity()
