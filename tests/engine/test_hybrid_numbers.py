"""Qwen3.5's numbers do not depend on where a prompt is cut, nor on whether it went on from a snapshot."""

from pathlib import Path

import pytest
import torch

from engine.harness import loaded, request_of, small_picture
from engine.test_hybrid import GRID, WORDS, answer, hybrid, text_of
from plain_loop import SingleSequence, encode_items
from sightline.models.inputs import StateCache


@pytest.fixture
def folder(tiny_checkpoints: dict[str, Path]) -> Path:
    return tiny_checkpoints["qwen3.5"]


def test_the_whole_model_cut_anywhere(folder: Path) -> None:
    """Logits of every token, wherever the prompt is cut. Red beyond what sums in another order change."""
    request = request_of(folder, WORDS, small_picture(3), WORDS)
    llm = loaded(folder)
    rows = encode_items(llm.model, request, llm.processor)
    whole = SingleSequence(llm.model, request, len(request), 16).prefill(rows, all_logits=True)
    cuts = [(cut,) for cut in (1, 2, 3, 4, 63, 64, 65, 90, 128, len(request) - 1)] + [(1, 2, 3, 70, 71), (64, 128)]
    for cut in cuts:
        found = SingleSequence(llm.model, request, len(request), 16).prefill(rows, all_logits=True, cuts=cut)
        torch.testing.assert_close(found, whole, atol=1e-5, rtol=1e-5)


def test_a_hit_computes_the_very_same_numbers(folder: Path) -> None:
    """In bfloat16, where any difference would show: after a hit the state is bit for bit that of a cold run. Red if a snapshot
    is rounded, or if a cold run does not pass the same places."""
    llm = loaded(folder)
    request = text_of(folder, 300)
    model = llm.model.to(torch.bfloat16)
    try:
        ends = []
        for cuts in ((192, 256), (256,), (64, 128, 192, 256)):
            plain = SingleSequence(model, request, 301, 16)
            logits = plain.prefill(None, cuts=cuts)
            ends.append(
                [logits, *(tensor for cache in plain.caches if isinstance(cache, StateCache) for tensor in cache.tensors)]
            )
        for other in ends[1:]:
            assert all(torch.equal(one, two) for one, two in zip(ends[0], other, strict=True))
        assert ends[0][1].dtype == torch.float32
    finally:
        llm.model.to(torch.float32)
        loaded.cache_clear()


def test_the_next_turn_of_a_conversation_hits(folder: Path) -> None:
    """Red if a snapshot lies among the tokens that the template puts before an answer: with thoughts or without, the next turn
    writes them differently, and hits fall to nothing."""
    llm = loaded(folder)
    for thinking in (True, False):
        for extra in range(0, 64, 15):  # wherever the last multiple of 64 falls
            made = hybrid(folder)
            asked = [{"role": "user", "content": WORDS + "x" * extra}]
            first = llm.prompts.chat(asked, chat_template_kwargs={"enable_thinking": thinking})
            answer(made, first)
            told = [*asked, {"role": "assistant", "content": "It does."}, {"role": "user", "content": "Why?"}]
            second = llm.prompts.chat(told, chat_template_kwargs={"enable_thinking": thinking})
            same = next(i for i, (a, b) in enumerate(zip(first.token_ids, second.token_ids, strict=False)) if a != b)
            _, cached = answer(made, second)
            assert GRID <= same // GRID * GRID - cached + GRID <= 2 * GRID and cached >= (same - 16) // GRID * GRID > 0
