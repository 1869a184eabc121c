"""Rotary frequencies by length: sequences of more tokens than the original length have those of long ones, from their first."""

import functools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from engine.harness import driver, loaded
from parity.conversations import picture
from parity.subject import TOLERANCE, Subject, subject
from phi4_multimodal.oracle import oracle
from phi4_multimodal.test_parity import GREEDY_TOKENS, pixels
from sightline.models.rotary_tables import RotaryTables
from sightline.prompt.context_length import in_its_rope_regime
from sightline.schedule.state import Sequence
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


def test_which_prompts_are_long() -> None:
    request = Request(np.zeros(1000, np.int32), np.arange(3000, dtype=np.int32).reshape(3, 1000), 0, (), ())
    for limit in (1000, ORIGINAL, None):
        assert in_its_rope_regime(request, limit) == (request, False)
    moved, is_long = in_its_rope_regime(request, 999)
    assert is_long and (moved.positions == request.positions + 999).all() and moved.position_delta == 999
    assert moved.positions.dtype == np.int32


@pytest.mark.parametrize("with_image", [False, True])
def test_long_prompts(phi4: Path, with_image: bool) -> None:
    """Red if the factors, the scale of cosines, or where the second part of the table begins differ."""
    ours = subject(phi4)
    plain = request_of(ours, ORIGINAL + 9, with_image)
    request, is_long = in_its_rope_regime(plain, ORIGINAL)
    assert is_long
    reference, images = oracle(phi4, with_image), pixels(request)
    torch.testing.assert_close(ours.logits(request), reference.logits(request, images), atol=TOLERANCE, rtol=0)
    answer = reference.greedy(request, images, GREEDY_TOKENS)
    assert ours.greedy(request, GREEDY_TOKENS) == answer
    assert ours.greedy(plain, GREEDY_TOKENS) != answer, "the test says nothing: short frequencies give the same"


@functools.cache
def uncached(folder: Path, tokens: int) -> list[int]:
    return oracle(folder, False).greedy(request_of(subject(folder), tokens), [], 8, cached=False)


# Prompts that end with their answer at the limit, pass it by one token, in the midst of it, with their first token.
@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("tokens", [1017, 1018, 1021, ORIGINAL, ORIGINAL + 1])
def test_answers_that_pass_the_limit(phi4: Path, tokens: int, overlap: bool) -> None:
    """Red if an engine changes frequencies at another token, keeps pages of the others, or loses a token that is in flight."""
    ours = subject(phi4)
    request = request_of(ours, tokens)
    made = driver(phi4, page_size=16, overlap=overlap)
    number = made.add(request, 8)
    made.run()
    assert not made.errors
    assert made.tokens(number) == uncached(phi4, tokens)
    assert made.engine.schedule.preemptions == (1018 <= tokens <= ORIGINAL)


def test_several_at_once_with_pictures_chunks_and_guesses(phi4: Path) -> None:
    """Some pass the limit in the same steps; guesses that would pass it are not made. Red if one changes those of another."""
    ours = subject(phi4)
    requests = [
        request_of(ours, tokens, with_image) for tokens, with_image in ((1020, True), (1021, False), (1018, True), (40, False))
    ]
    answers = [oracle(phi4, bool(r.items)).greedy(r, pixels(r), 10, cached=False) for r in requests]
    by_prompt = {r.token_ids.tobytes(): answer for r, answer in zip(requests, answers, strict=True)}

    def guess(sequence: Sequence) -> tuple[int, ...]:
        done = len(sequence.output)
        return tuple(by_prompt[sequence.request.token_ids.tobytes()][done : done + 3])  # right ones

    for drafter in (None, guess):
        made = driver(phi4, drafter, page_size=16, max_num_batched_tokens=200)
        numbers = [made.add(request, 10) for request in requests]
        made.run()
        assert not made.errors
        assert [made.tokens(number) for number in numbers] == answers
        assert made.engine.schedule.preemptions == 3


def test_prefixes_are_of_their_frequencies(phi4: Path) -> None:
    """A short conversation goes on, and passes the limit: none of its pages counts any more. Then both are known."""
    ours = subject(phi4)
    short, long = request_of(ours, 960), request_of(ours, 1100)
    same = int((short.token_ids[:950] == long.token_ids[:950]).sum())
    assert same == 950
    made = driver(phi4, page_size=16)
    for cached in (False, True):
        for request in (short, long):
            number = made.add(request, 8)
            made.run()
            assert (made.completions[number, 0].cached_tokens > 900) == cached
            assert made.tokens(number) == oracle(phi4, False).greedy(request, [], 8)


def test_where_nothing_can_be_long_there_is_one_table(phi4: Path) -> None:
    rope = loaded(phi4).spec.text.attention.rope
    for longest, rows in ((ORIGINAL, ORIGINAL), (ORIGINAL + 1, 2 * ORIGINAL + 1)):
        table, _ = RotaryTables(longest, torch.device("cpu")).of(rope)
        assert table.positions == rows
    assert rope.long is not None
    same, _ = RotaryTables(64, torch.device("cpu")).of(replace(rope, long=None))
    assert not torch.equal(same.cos, table.cos[:64])
