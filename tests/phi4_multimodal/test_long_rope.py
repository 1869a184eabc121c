"""Rotary frequencies by length: requests that may become longer than the original length have those of long sequences."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from engine.harness import driver, loaded
from parity.conversations import picture
from parity.subject import TOLERANCE, Subject, subject
from phi4_multimodal.oracle import oracle
from phi4_multimodal.test_parity import GREEDY_TOKENS, pixels
from sightline.models.rotary_tables import RotaryTables
from sightline.prompt.context_length import in_its_rope_regime
from sightline.types import Request

ORIGINAL = 1024  # tokens, of the tiny checkpoint


def request_of(ours: Subject, tokens: int, with_image: bool = False) -> Request:
    """A prompt of so many tokens, one of which is a byte."""

    def made(letters: int) -> Request:
        content = [{"type": "text", "text": "".join(chr(97 + 7 * n % 26) for n in range(letters))}]
        if with_image:
            content.insert(0, {"type": "image", "image": picture(100, 70, 1)})
        return ours.request([{"role": "user", "content": content}])

    request = made(tokens - len(made(0)))
    assert len(request) == tokens
    return request


def test_which_requests_are_long() -> None:
    """The last token of an answer is never computed, so it does not count."""
    import numpy as np

    request = Request(np.zeros(1000, np.int32), np.arange(3000, dtype=np.int32).reshape(3, 1000), 0, (), ())
    assert in_its_rope_regime(request, 25, ORIGINAL) == (request, False)
    assert in_its_rope_regime(request, 9999, None) == (request, False)
    moved, is_long = in_its_rope_regime(request, 26, ORIGINAL)
    assert is_long and (moved.positions == request.positions + ORIGINAL).all() and moved.position_delta == ORIGINAL
    assert moved.positions.dtype == np.int32


def test_short_sequences_that_end_at_the_limit(phi4: Path) -> None:
    ours = subject(phi4)
    request, is_long = in_its_rope_regime(request_of(ours, ORIGINAL + 1 - GREEDY_TOKENS), GREEDY_TOKENS, ORIGINAL)
    assert not is_long
    assert ours.greedy(request, GREEDY_TOKENS) == oracle(phi4, False).greedy(request, [], GREEDY_TOKENS)


@pytest.mark.parametrize("with_image", [False, True])
def test_long_sequences(phi4: Path, with_image: bool) -> None:
    """Red if the factors, the scale of cosines, or where the second part of the table begins differ."""
    ours = subject(phi4)
    plain = request_of(ours, ORIGINAL + 9, with_image)
    request, is_long = in_its_rope_regime(plain, GREEDY_TOKENS, ORIGINAL)
    assert is_long
    reference, images = oracle(phi4, with_image), pixels(request)
    torch.testing.assert_close(ours.logits(request), reference.logits(request, images), atol=TOLERANCE, rtol=0)
    answer = reference.greedy(request, images, GREEDY_TOKENS)
    assert ours.greedy(request, GREEDY_TOKENS) == answer
    assert ours.greedy(plain, GREEDY_TOKENS) != answer, "the test says nothing: short frequencies give the same"


def test_a_sequence_that_grows_long_is_so_from_its_first_token(phi4: Path) -> None:
    """transformers computes all of it anew when it passes the limit; from there on both are the same."""
    ours = subject(phi4)
    request, is_long = in_its_rope_regime(request_of(ours, ORIGINAL - 8), 64, ORIGINAL)
    assert is_long
    more = [97 + 5 * n % 26 for n in range(20)]
    found, expected = ours.logits(request, more), oracle(phi4, False).logits(request, [], more)
    torch.testing.assert_close(found, expected, atol=TOLERANCE, rtol=0)


def test_an_engine_decides_by_what_a_request_may_become(phi4: Path) -> None:
    """Two requests with one prompt, one of which may become long. Red if either takes the other's frequencies, or its pages."""
    llm = loaded(phi4)
    ours = subject(phi4)
    request = request_of(ours, 960)
    made = driver(phi4, page_size=16)
    numbers = [made.add(request, 8), made.add(request, 200, ignore_eos=True)]
    made.run()
    assert not made.errors
    short, long = (made.completions[number, 0] for number in numbers)
    assert short.cached_tokens == long.cached_tokens == 0
    assert list(short.token_ids) == ours.greedy(request, 8)
    moved, _ = in_its_rope_regime(request, 200, ORIGINAL)
    assert list(long.token_ids) == ours.greedy(moved, 200)
    again = [made.add(request, 8), made.add(request, 200, ignore_eos=True)]
    made.run()
    for number, before in zip(again, (short, long), strict=True):
        assert made.completions[number, 0].cached_tokens > 900
        assert made.completions[number, 0].token_ids == before.token_ids
    assert llm.max_model_len > ORIGINAL


def test_where_nothing_can_be_long_there_is_one_table(phi4: Path) -> None:
    rope = loaded(phi4).spec.text.attention.rope
    for longest, rows in ((ORIGINAL, ORIGINAL), (ORIGINAL + 1, 2 * ORIGINAL + 1)):
        table, _ = RotaryTables(longest, torch.device("cpu")).of(rope)
        assert table.positions == rows
    assert rope.long is not None
    same, _ = RotaryTables(64, torch.device("cpu")).of(replace(rope, long=None))
    assert not torch.equal(same.cos, table.cos[:64])
