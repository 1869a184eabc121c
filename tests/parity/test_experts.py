"""Models with experts: tokens go to the experts that transformers chooses, and the engine answers as the plain loop does.

Qwen3-VL-MoE has scores by softmax, GLM-4.6V sigmoids with a bias to choose by and a shared expert. What their families share
with dense ones is tried with them (tests/conftest.py).
"""

from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.harness import driver, request_of, small_picture
from parity import routing
from parity.conversations import conversations
from parity.subject import TOLERANCE, both, check_bfloat16, check_ids_and_positions, check_rows, subject
from sightline.spec import ExpertsSpec
from sightline.types import Request

WITH_EXPERTS = ("qwen3-vl-moe", "glm-4.6v")
GREEDY_TOKENS = 64
ANSWER = 6
NAME = "same image twice"

every_family = pytest.mark.parametrize("family", WITH_EXPERTS)


@every_family
def test_experts_then_logits_then_tokens(tiny_checkpoints: dict[str, Path], family: str) -> None:
    """In float32 each token of each layer goes to the same experts with the same weights. Red when a bias weighs, weights are
    not divided by their sum, the shared expert is left out or halves of a head are taken for neighbours."""
    reference, ours = both(tiny_checkpoints, family, "cpu")
    inputs, request = check_ids_and_positions(reference, ours, conversations()[NAME])
    check_rows(reference, ours, inputs, request)
    theirs, mine = routing.gates(reference), routing.routers(ours.llm.model)
    text = ours.llm.spec.text
    sparse = sum(isinstance(layer.mlp, ExpertsSpec) for layer in text.layers)
    assert len(theirs) == len(mine) == sparse < text.num_layers, "one layer is dense"
    with routing.recorded(theirs, 2) as chosen, routing.recorded(theirs, 1) as weights:
        expected = reference.logits(inputs)
    with routing.recorded(mine, 0) as our_chosen, routing.recorded(mine, 1) as our_weights:
        logits = ours.logits(request)
    found = zip(*map(routing.joined, (chosen, weights, our_chosen, our_weights)), strict=True)
    for their_experts, their_weights, our_experts, our_own in found:
        count = their_experts.shape[1]
        order, our_order = their_experts.argsort(1), our_experts[:, :count].argsort(1)  # sigmoids come in no order
        assert torch.equal(our_experts[:, :count].gather(1, our_order).long(), their_experts.gather(1, order))
        torch.testing.assert_close(
            our_own[:, :count].gather(1, our_order), their_weights.gather(1, order), atol=1e-5, rtol=1e-5
        )
    torch.testing.assert_close(logits, expected, atol=TOLERANCE, rtol=0)
    assert ours.greedy(request, GREEDY_TOKENS) == reference.greedy(inputs, GREEDY_TOKENS)


@every_family
def test_bfloat16(tiny_checkpoints: dict[str, Path], family: str) -> None:
    """Red when a result is rounded once more than it must be, or a router's sigmoids are."""
    exact, _ = both(tiny_checkpoints, family, "cpu")
    rounded, ours = both(tiny_checkpoints, family, "cpu", torch.bfloat16)
    inputs = exact.inputs(conversations()[NAME])
    request = ours.request(conversations()[NAME])
    rows = [reference.rows(inputs["pixel_values"], inputs["image_grid_thw"]) for reference in (exact, rounded)]
    check_bfloat16(exact, rounded, ours, request, rows[0], rows[1], exact.greedy(inputs, 24))


@every_family
def test_bfloat16_sends_few_tokens_elsewhere(tiny_checkpoints: dict[str, Path], family: str) -> None:
    """In the first layer with experts, whose inputs differ by rounding alone, we part from float32 no more often than
    transformers does, by more than chance. Red when the router is computed in fewer bits than theirs."""
    exact, _ = both(tiny_checkpoints, family, "cpu")
    rounded, ours = both(tiny_checkpoints, family, "cpu", torch.bfloat16)
    parted = theirs_parted = tokens = 0
    for name in ("several sizes", "several turns", NAME):
        inputs, request = exact.inputs(conversations()[name]), ours.request(conversations()[name])
        sets = []
        for reference in (exact, rounded):
            with routing.recorded(routing.gates(reference), 2) as calls:
                reference.logits(inputs)
            sets.append(routing.joined(calls)[0].sort(1).values)
        with routing.recorded(routing.routers(ours.llm.model), 0) as calls:
            ours.logits(request)
        mine = routing.joined(calls)[0][:, : sets[0].shape[1]].long().sort(1).values
        theirs_parted += int((sets[1] != sets[0]).any(1).sum())
        parted += int((mine != sets[0]).any(1).sum())
        tokens += len(mine)
    assert theirs_parted < tokens / 4, "the comparison says nothing"
    assert parted <= 1.5 * theirs_parted + 5, f"{parted} of {tokens} tokens go elsewhere, with transformers {theirs_parted}"


# ---- Through the engine


WORDS = "the quick brown fox jumps over the lazy dog"


def with_picture(folder: Path) -> Request:
    return request_of(folder, WORDS, small_picture(3), WORDS)


@lru_cache(maxsize=16)
def _plain(folder: Path, *parts: Any) -> list[int]:
    ours = subject(folder)
    return ours.greedy(with_picture(folder) if not parts else request_of(folder, *parts), ANSWER)


@every_family
def test_chunks_and_prefix_hits(tiny_checkpoints: dict[str, Path], family: str) -> None:
    _run_chunks(tiny_checkpoints[family], [7, 33])


@pytest.mark.slow
@every_family
def test_chunks_that_end_at_every_offset(tiny_checkpoints: dict[str, Path], family: str) -> None:
    folder = tiny_checkpoints[family]
    _run_chunks(folder, list(range(1, len(with_picture(folder)) + 2)))


def _run_chunks(folder: Path, sizes: list[int]) -> None:
    """Two sequences at once, the longer one a second time from the cache. Red when a token's experts depend on its neighbours,
    or pairs of one step are mixed up."""
    long, short = with_picture(folder), request_of(folder, "a word")
    expected = [_plain(folder), _plain(folder, "a word")]
    for size in sizes:
        made = driver(folder, max_num_batched_tokens=size)
        numbers = [made.add(request, ANSWER) for request in (long, short)]
        made.run()
        assert [made.tokens(number) for number in numbers] == expected, size
        again = made.add(long, ANSWER)
        made.run()
        assert made.tokens(again) == expected[0] and made.completions[again, 0].cached_tokens > 0
