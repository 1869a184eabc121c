"""Step3-VL against transformers' parts of it on the same weights: ids, positions, rows, logits, 64 greedy tokens, bfloat16.

Any change to the prompt, the windows, the tower, the decoder or the weight table turns these red.
"""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from models import test_fp8 as fp8
from parity.conversations import Messages, picture
from parity.subject import DEVICES, TOLERANCE, Subject, check_bfloat16, subject
from sightline.llm import LLM
from sightline.types import Request
from step3_vl.conversations import SHAPES, conversations, user
from step3_vl.oracle import Oracle, oracle, views

FAMILY = "step3-vl"
GREEDY_TOKENS = 64

every_conversation = pytest.mark.parametrize("name", conversations())
every_device = pytest.mark.parametrize("device", DEVICES)


def both(
    folders: dict[str, Path], device: str, messages: Messages, dtype: torch.dtype = torch.float32
) -> tuple[Oracle, Subject, list[int], Request]:
    reference, ours = oracle(folders[FAMILY], device, dtype), subject(folders[FAMILY], device, dtype)
    return reference, ours, reference.ids(messages), ours.request(messages)


@every_device
@every_conversation
def test_ids_positions_rows_logits(tiny_checkpoints: dict[str, Path], device: str, name: str) -> None:
    messages = conversations()[name]
    reference, ours, ids, request = both(tiny_checkpoints, device, messages)
    assert request.token_ids.tolist() == ids
    assert (request.positions == range(len(ids))).all() and request.position_delta == 0
    expected, rows = reference.all_rows(messages), ours.rows(request)
    if expected is None:
        assert rows is None
    else:
        torch.testing.assert_close(rows, expected, atol=TOLERANCE, rtol=0)
    torch.testing.assert_close(ours.logits(request), reference.logits(ids, expected), atol=TOLERANCE, rtol=0)


@every_device
@every_conversation
def test_greedy_tokens(tiny_checkpoints: dict[str, Path], device: str, name: str) -> None:
    messages = conversations()[name]
    reference, ours, ids, request = both(tiny_checkpoints, device, messages)
    assert ours.greedy(request, GREEDY_TOKENS) == reference.greedy(ids, reference.all_rows(messages), GREEDY_TOKENS)


@every_device
@pytest.mark.parametrize("shape", SHAPES)
def test_pictures_of_every_shape(tiny_checkpoints: dict[str, Path], device: str, shape: str) -> None:
    """Red if a shape is given other windows, padded or resized otherwise, or its windows come in another order."""
    size, (down, across) = SHAPES[shape]
    image = picture(*size, 5)
    reference, ours, ids, request = both(tiny_checkpoints, device, [user("A ", image, " B")])
    assert request.token_ids.tolist() == ids
    assert len(views(image, reference.numbers)) == down * across + 1
    torch.testing.assert_close(ours.rows(request), reference.rows(image), atol=TOLERANCE, rtol=0)


@every_device
@every_conversation
def test_bfloat16(tiny_checkpoints: dict[str, Path], device: str, name: str) -> None:
    """Logits err at most 1.5 times as much as transformers' own, and so do rows."""
    messages = conversations()[name]
    exact, _, ids, request = both(tiny_checkpoints, device, messages)
    rounded, ours, _, _ = both(tiny_checkpoints, device, messages, torch.bfloat16)
    truth, theirs = exact.all_rows(messages), rounded.all_rows(messages)
    if truth is not None and theirs is not None:
        mine = ours.rows(request)
        assert mine is not None
        errors = [(found.float() - truth).square().mean().sqrt() for found in (mine, theirs)]
        assert errors[0] <= 1.5 * errors[1], f"ours {errors[0]:.5f}, transformers' {errors[1]:.5f}"
    continuation = exact.greedy(ids, truth, GREEDY_TOKENS)
    references = (as_judge(one) for one in (exact, rounded))
    check_bfloat16(*references, ours, request, truth, theirs, continuation)  # type: ignore[arg-type]


def test_fp8(tiny_checkpoints: dict[str, Path]) -> None:
    """Logits err at most 1.5 times as much as transformers' with perfectly rounded layers, the tower left as it is."""
    folder, reference = tiny_checkpoints[FAMILY], oracle(tiny_checkpoints[FAMILY])
    exact = subject(folder).llm
    request = fp8.request_of(exact)
    rows = fp8.rows_of(exact, request)
    truth = reference.logits(request.token_ids.tolist(), rows)
    with LLM(folder, device="cpu", dtype="bfloat16", quantization="fp8", **fp8.SMALL) as llm:
        found = fp8.error(fp8.logits(llm, request, rows), truth)
    best = fp8.error(fp8.rounded_logits(as_judge(reference), request, rows, 0), truth)  # type: ignore
    assert 0.5 * best <= found <= 1.5 * best


def as_judge(reference: Oracle) -> SimpleNamespace:
    """As other families' oracle is asked."""
    return SimpleNamespace(
        model=SimpleNamespace(model=SimpleNamespace(language_model=reference.text.model)),
        logits_for_request=lambda request, rows, extra: reference.logits(
            request.token_ids.tolist(), getattr(rows, "main", rows), more=tuple(extra)
        ),
    )
