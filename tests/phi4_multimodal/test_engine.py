"""Through the engine: adapters in one batch, chunks, prefixes, preemption, many pictures. Answers are those of the plain loop,
which test_parity.py compares with transformers."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.harness import Driver, driver, loaded, plain_answer, request_of, sized_driver
from parity.conversations import picture
from phi4_multimodal.test_parity import SIZES
from plain_loop import SingleSequence, encode_items
from sightline.cache.keys import page_keys
from sightline.engine.executor import local_worker
from sightline.types import Request

ANSWER = 8


def tokens_of(made: Driver, requests: list[Request]) -> list[list[int]]:
    numbers = [made.add(request, ANSWER) for request in requests]
    made.run()
    assert not made.errors
    return [made.tokens(number) for number in numbers]


def expected(folder: Path, requests: list[Request]) -> list[list[int]]:
    return [plain_answer(folder, request, ANSWER) for request in requests]


@pytest.mark.parametrize("patches", [16, 40, 65_536])
def test_pictures_of_many_sizes_and_texts_at_once(phi4: Path, patches: int) -> None:
    """Encoded together or crop by crop, with and without the adapter in one step. Red if a token has another's adapter, or
    items of one encode take each other's rows."""
    pictures = [picture(*size, number) for number, size in enumerate(SIZES[:8])]
    requests = [request_of(phi4, "Which? ", *pictures[:4])]
    for one in pictures[4:]:
        requests += [request_of(phi4, one, "This?"), request_of(phi4, "This? Or that?")]
    made = driver(phi4, max_patches_per_step=patches, lookahead_patches=0, max_num_batched_tokens=300)
    gates: list[set[int]] = []
    submit = made.engine.executor.submit

    def seen(step: Any) -> Any:
        index = step.batch.adapter_index
        gates.append({-1} if index is None else set(np.unique(index).tolist()))
        return submit(step)

    made.engine.executor.submit = seen  # type: ignore[method-assign]
    assert tokens_of(made, requests) == expected(phi4, requests)
    assert {-1, 0} in gates, "no step had both"


def test_the_last_layer_takes_gates_of_the_tokens_that_are_left(phi4: Path) -> None:
    """Prompts with and without a picture end in one step, in which the last layer goes on with few of the tokens. Red if it
    takes the gates of others: its answer is near the right one, so numbers are compared."""
    model, processor = loaded(phi4).model, loaded(phi4).processor
    seen, text = request_of(phi4, picture(101, 99, 1), "What is it?"), request_of(phi4, "Some words, and no picture.")
    for order in ([seen, text], [text, seen], [text, seen, text, seen]):
        made = driver(phi4, max_num_batched_tokens=2048)
        numbers = [made.add(request, 1, logprobs=True) for request in order]
        made.run()
        assert made.engine.counts.encoded == 1
        for number, request in zip(numbers, order, strict=True):
            logits = SingleSequence(model, request, len(request), page_size=16).prefill(encode_items(model, request, processor))
            expected = logits[0].log_softmax(0).max()
            assert made.completions[number, 0].logprobs[0].logprob == pytest.approx(float(expected), abs=1e-4)


def test_texts_alone_have_no_gates(phi4: Path) -> None:
    """Red if steps without a picture pay for the adapter."""
    made, found = driver(phi4), []
    submit = made.engine.executor.submit
    made.engine.executor.submit = lambda step: (found.append(step.batch.adapter_index), submit(step))[1]  # type: ignore
    tokens_of(made, [request_of(phi4, "one"), request_of(phi4, "two")])
    assert found and found == [None] * len(found)


def test_chunks_that_end_at_every_offset(phi4: Path) -> None:
    """Red if a chunk inside a picture, its newlines or the text before it is computed without the adapter."""
    request = request_of(phi4, "ab", picture(101, 99, 3), "c")
    for size in range(1, len(request) + 1):
        assert tokens_of(driver(phi4, max_num_batched_tokens=size), [request]) == expected(phi4, [request]), size


def test_prefix_hits_that_end_inside_a_picture(phi4: Path) -> None:
    image = picture(101, 99, 4)
    first, second = request_of(phi4, "abc", image, "one"), request_of(phi4, "abc", image, "two, and more")
    (span,) = first.spans
    end = span.start + span.count
    inside = [size for size in range(2, 20) if span.start < (end + 1) // size * size < end]
    assert inside
    for size in inside:
        made = driver(phi4, page_size=size)
        assert tokens_of(made, [first]) == expected(phi4, [first])
        made.engine.schedule.embeddings.clear()
        number = made.add(second, ANSWER)
        made.run()
        assert made.tokens(number) == expected(phi4, [second])[0]
        assert span.start < made.completions[number, 0].cached_tokens < end and made.engine.counts.encoded == 2


def test_a_prefix_is_of_the_adapter_that_computed_it(phi4: Path) -> None:
    """A text and a text with a picture at its end have the same first tokens and other keys and values. Red if page keys do not
    cover the adapter."""
    beginning = "The same words at the beginning of both, for many pages. "
    text, seen = request_of(phi4, beginning, "Yes?"), request_of(phi4, beginning, picture(60, 50, 1), "Yes?")
    same = len(beginning) // 4 * 4
    assert (text.token_ids[:same] == seen.token_ids[:same]).all()
    for order in ([text, seen], [seen, text]):
        made = driver(phi4)
        for request in order:
            number = made.add(request, ANSWER)
            made.run()
            assert made.tokens(number) == plain_answer(phi4, request, ANSWER)
            assert made.completions[number, 0].cached_tokens == 0
        again = [made.add(request, ANSWER) for request in order]
        made.run()
        for number, request in zip(again, order, strict=True):
            assert made.tokens(number) == plain_answer(phi4, request, ANSWER)
            assert made.completions[number, 0].cached_tokens > same


def test_roots_of_adapters_and_regimes_differ(phi4: Path) -> None:
    """Red if two ways to compute the same tokens share a root, or a salt can be written so that they do."""
    engine = driver(phi4).engine
    found = [
        engine._root_key(0, salt, adapter, is_long)
        for salt in ("", "adapter 0 salt ", "long salt ")
        for adapter in (-1, 0, 1)
        for is_long in (False, True)
    ]
    assert len(set(found)) == len(found)
    pages = [page_keys(np.arange(8, dtype=np.int32), (), (), 4, root)[0] for root in found]
    assert len(set(pages)) == len(pages)


def test_preemption(phi4: Path) -> None:
    """Pages for little more than one of four requests: they take turns. Red if one that comes back has another adapter."""
    words = ("a", "bb", "ccc", "dddd")
    requests = [
        request_of(phi4, word, *([picture(101, 99, seed)] if seed % 2 else []), "?" * 20) for seed, word in enumerate(words)
    ]
    longest = max(len(request) for request in requests)
    made = sized_driver(phi4, tokens=longest + 40, rows=64, page_size=2)
    numbers = [made.add(request, 24, ignore_eos=True) for request in requests]
    made.run()
    assert made.engine.schedule.preemptions > 0
    assert [made.tokens(number) for number in numbers] == [plain_answer(phi4, request, 24) for request in requests]


def test_the_profile_runs_with_the_adapter(phi4: Path) -> None:
    """Red if memory is planned for steps in which nobody has a picture."""
    from sightline.worker.profile_run import _language_batch

    model = local_worker(driver(phi4).engine.executor).model
    gates = _language_batch(model, (3, 1), 64, 4, None).adapter_gates
    assert gates is not None and gates.shape == (4, 8) and (gates == 0.5).all()
