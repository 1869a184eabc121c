"""Text and images: ids, positions, tower rows, logits and greedy tokens equal transformers' on the same weights.

Any change to the prompt, the preprocessing, the tower, the decoder or the weight table of a family turns these red.
"""

from pathlib import Path

import pytest
import torch

from oracle import Oracle, Rows, oracle
from parity.conversations import conversations
from parity.subject import DEVICES, FAMILIES, TOLERANCE, both, check_ids_and_positions, check_rows, subject
from sightline.run.generate import encode_items
from sightline.vision.patches import make_patches
from sightline.vision.tower_batch import make_tower_batch

GREEDY_TOKENS = 64

pytestmark = [pytest.mark.parametrize("family", FAMILIES), pytest.mark.parametrize("device", DEVICES)]
every_conversation = pytest.mark.parametrize("name", conversations())


@every_conversation
def test_ids_positions_rows_logits(tiny_checkpoints: dict[str, Path], family: str, device: str, name: str) -> None:
    reference, ours = both(tiny_checkpoints, family, device)
    inputs, request = check_ids_and_positions(reference, ours, conversations()[name])
    check_rows(reference, ours, inputs, request)
    torch.testing.assert_close(ours.logits(request), reference.logits(inputs), atol=TOLERANCE, rtol=0)


@every_conversation
def test_greedy_tokens(tiny_checkpoints: dict[str, Path], family: str, device: str, name: str) -> None:
    reference, ours = both(tiny_checkpoints, family, device)
    inputs, request = reference.inputs(conversations()[name]), ours.request(conversations()[name])
    assert ours.greedy(request, GREEDY_TOKENS) == reference.greedy(inputs, GREEDY_TOKENS)


def test_folded_patches_equal_unfolded(tiny_checkpoints: dict[str, Path], family: str, device: str) -> None:
    """Stills go through the summed patch weight; the full patches are the reference path."""
    ours = subject(tiny_checkpoints[family], device)
    request = ours.request(conversations()["several sizes"])
    model, image = ours.llm.model, ours.llm.processor.image
    full = [make_patches(item, image, torch.device(device), torch.float32, compact=False) for item in request.items]
    batch = make_tower_batch(full, [item.grid for item in request.items], model.spec.vision, torch.device(device))
    compact = encode_items(model, request, ours.llm.processor)
    assert compact is not None and full[0].shape[1] == model.vision.patch_embed.weight.shape[1]
    torch.testing.assert_close(compact, model.encode(batch), atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("name", ["text only", "several sizes", "several turns"])
def test_bfloat16_error(tiny_checkpoints: dict[str, Path], family: str, device: str, name: str) -> None:
    """Against float32, our bfloat16 logits err at most 1.5 times as much as transformers' own, and choose the same tokens.

    Tokens are compared teacher-forced. A place where float32's best two are closer than bfloat16's error is a tie.
    """
    messages = conversations()[name]
    exact = oracle(tiny_checkpoints[family], family, device)
    rounded, ours = both(tiny_checkpoints, family, device, torch.bfloat16)
    inputs, request = exact.inputs(messages), ours.request(messages)
    truth = exact.logits(inputs)
    theirs = rounded.logits(inputs).float()
    mine = ours.logits(request).float()
    their_error, my_error = (theirs - truth).square().mean().sqrt(), (mine - truth).square().mean().sqrt()
    assert my_error <= 1.5 * their_error, f"ours {my_error:.5f}, transformers' {their_error:.5f}"

    continuation = exact.greedy(inputs, GREEDY_TOKENS)
    from_prompt = slice(len(request) - 1, -1)
    truth = exact.logits_for_request(request, _tower_rows(exact, inputs), continuation)[from_prompt]
    theirs = rounded.logits_for_request(request, _tower_rows(rounded, inputs), continuation)[from_prompt].float()
    mine = ours.logits(request, continuation).float()[from_prompt]
    best = truth.topk(2, dim=1).values
    tie = best[:, 0] - best[:, 1] < 2 * (theirs - truth).abs().max()
    differs = mine.argmax(1) != truth.argmax(1)
    assert not (differs & ~tie).any()
    print(f"{family} {name}: {int(tie.sum())} of {GREEDY_TOKENS} places are ties, {int(differs.sum())} of them differ")
    assert tie.float().mean() < 0.75, "ties nearly everywhere: the comparison says nothing"


def _tower_rows(reference: Oracle, inputs: dict[str, torch.Tensor]) -> Rows | None:
    return reference.rows(inputs["pixel_values"], inputs["image_grid_thw"]) if "pixel_values" in inputs else None
