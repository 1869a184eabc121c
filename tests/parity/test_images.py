"""Text and images: ids, positions, tower rows, logits and greedy tokens equal transformers' on the same weights.

Any change to the prompt, the preprocessing, the tower, the decoder or the weight table of a family turns these red.
"""

from pathlib import Path

import pytest
import torch

from file_patches import make_patches
from oracle import oracle
from parity.conversations import conversations
from parity.subject import DEVICES, FAMILIES, TOLERANCE, both, check_bfloat16, check_ids_and_positions, check_rows, subject
from plain_loop import encode_items

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
    batch = model.vision.make_batch(full, [item.grid for item in request.items])
    compact = encode_items(model, request, ours.llm.processor)
    assert compact is not None and full[0].shape[1] == model.vision.patch_width
    torch.testing.assert_close(compact, model.encode(batch), atol=TOLERANCE, rtol=0)


@every_conversation
def test_bfloat16(tiny_checkpoints: dict[str, Path], family: str, device: str, name: str) -> None:
    messages = conversations()[name]
    exact = oracle(tiny_checkpoints[family], family, device)
    rounded, ours = both(tiny_checkpoints, family, device, torch.bfloat16)
    inputs, request = exact.inputs(messages), ours.request(messages)
    rows = [
        reference.rows(inputs["pixel_values"], inputs["image_grid_thw"]) if "pixel_values" in inputs else None
        for reference in (exact, rounded)
    ]
    ties = check_bfloat16(exact, rounded, ours, request, rows[0], rows[1], exact.greedy(inputs, GREEDY_TOKENS))
    print(f"{family} {name}: {ties} of {GREEDY_TOKENS} places are ties")
