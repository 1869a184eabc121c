"""Prompts, rows, logits and greedy tokens equal those of transformers' parts on the same weights."""

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch

from deepseek_vl2.conftest import SIZES
from deepseek_vl2.oracle import images_of, joined_oracle
from parallel.checkpoints import many_heads
from parity.conversations import conversations, picture
from parity.subject import TOLERANCE, check_bfloat16, subject
from sightline.errors import ConfigError
from sightline.models.families.deepseek_vl2 import FAMILY
from sightline.types import Request

GREEDY_TOKENS = 64


def user(*parts: Any) -> dict[str, Any]:
    content = [{"type": "text", "text": part} if isinstance(part, str) else {"type": "image", "image": part} for part in parts]
    return {"role": "user", "content": content}


def odd_conversations() -> dict[str, Any]:
    """One tile and many, and images that are smaller than a tile, wide, tall and of odd sizes."""
    return {
        "many tiles": [user(picture(1371, 911, 5), "What is this?")],
        "wide and tall": [user("A ", picture(1400, 301, 6), " and ", picture(77, 1203, 7), "?")],
        "one tile": [user(picture(53, 47, 8), picture(384, 384, 9), "Which?")],
        "more than two": [user(*(picture(300 + 171 * n, 811 - 99 * n, n) for n in range(3)), "Compare.")],
    }


ALL = {**conversations(), **odd_conversations()}
FEW = ("text only", "several turns", "wide and tall", "more than two")
every_conversation = pytest.mark.parametrize(
    ("kind", "name"),
    [
        pytest.param(kind, name, marks=() if name in (FEW if kind == "tiny-mla" else FEW[-2:]) else pytest.mark.slow)
        for kind, name in itertools.product(SIZES, ALL)
    ],
)


def checked_request(folder: Path, name: str) -> Request:
    """Ours, whose ids and positions are right."""
    request = subject(folder).request(ALL[name])
    assert request.token_ids.tolist() == joined_oracle(folder).ids(ALL[name])
    assert (request.positions == torch.arange(len(request)).numpy()).all() and request.position_delta == 0
    return request


@every_conversation
def test_ids_rows_logits_tokens(checkpoints: dict[str, Path], kind: str, name: str) -> None:
    """Red if anything of the prompt, the tiles, the tower, the order of rows, the decoder or the weights is another."""
    folder = checkpoints[kind]
    ours, reference = subject(folder), joined_oracle(folder)
    request = checked_request(folder, name)
    rows, expected = ours.rows(request), reference.rows(images_of(ALL[name])) if images_of(ALL[name]) else None
    if expected is not None:
        assert rows is not None
        torch.testing.assert_close(rows, expected.main, atol=TOLERANCE, rtol=0)
    torch.testing.assert_close(
        ours.logits(request), reference.logits_for_request(request, expected, []), atol=TOLERANCE, rtol=0
    )
    assert ours.greedy(request, GREEDY_TOKENS) == reference.greedy(request, expected, GREEDY_TOKENS)


@pytest.mark.parametrize("scores", ["softmax", "sigmoid"])
def test_experts_of_the_best_groups(tmp_path: Path, scores: str) -> None:
    """Two groups of three. Red if one is chosen otherwise than by its best expert, or with a bias by its best two."""
    own = {"n_group": 3, "topk_group": 2, "topk_method": "group_limited_greedy", "routed_scaling_factor": 1.5}
    if scores == "sigmoid":
        own |= FAMILY.sizes["tiny-mla-sigmoid"]["language_config"] | {"n_group": 3, "topk_group": 2, "vocab_size": 320}
    folder = many_heads(tmp_path / "model", "deepseek-vl2", {"language_config": own})
    ours, reference = subject(folder), joined_oracle(folder)
    experts = ours.llm.spec.text.experts
    assert experts is not None and experts.groups == (3, 2) and experts.scores == scores
    request = checked_request(folder, "text only")
    logits = reference.logits_for_request(request, None, [])
    torch.testing.assert_close(ours.logits(request), logits, atol=TOLERANCE, rtol=0)
    assert ours.greedy(request, GREEDY_TOKENS) == reference.greedy(request, None, GREEDY_TOKENS)
    with pytest.raises(ConfigError, match="9 of 12 experts cannot be chosen from 'topk_group' 2 of 'n_group' 3"):
        many_heads(tmp_path / "few", "deepseek-vl2", {"language_config": {**own, "num_experts_per_tok": 9}})


@every_conversation
def test_bfloat16(checkpoints: dict[str, Path], kind: str, name: str) -> None:
    """Red when a result is rounded once more than it must be, or the router's scores are."""
    folder = checkpoints[kind]
    exact, rounded = joined_oracle(folder), joined_oracle(folder, torch.bfloat16)
    ours = subject(folder, "cpu", torch.bfloat16)
    request, images = checked_request(folder, name), images_of(ALL[name])
    rows = [reference.rows(images) if images else None for reference in (exact, rounded)]
    if images:
        mine = ours.rows(request)
        assert mine is not None and rows[0] is not None and rows[1] is not None
        their_error, my_error = ((found.float() - rows[0].main).square().mean().sqrt() for found in (rows[1].main, mine))
        assert my_error <= 1.5 * their_error, f"ours {my_error:.5f}, transformers' {their_error:.5f}"
    check_bfloat16(exact, rounded, ours, request, rows[0], rows[1], exact.greedy(request, rows[0], 24))  # type: ignore[arg-type]
