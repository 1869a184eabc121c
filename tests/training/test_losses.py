"""The losses of training. Red when labels shift by one, when the head reads other places, or when reading targets are wrong."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).parents[2] / "training"))

import torchvision_on_cpu

torchvision_on_cpu.declare_operators()

from batches import IGNORED, Batch, batches  # noqa: E402
from ctc import ctc_loss  # noqa: E402
from fast_forward import Layout, hidden_states  # noqa: E402
from feed import Drawn, answer_places, reading_targets  # noqa: E402
from oracle import oracle  # noqa: E402
from sightline.models.locate import EMBEDDED  # noqa: E402
from sightline.ops.pixels import patchify  # noqa: E402
from sightline.prompt.tokenizer import Tokenizer  # noqa: E402
from train import ReadingHead, exact, losses, normalised, patches_of  # noqa: E402

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def batch() -> Batch:
    return next(batches(EMBEDDED, "heldout", 4, 0, 1, 1.0, {"sign": 1.0}))


def drawn_from(batch: Batch) -> Drawn:
    at, wanted = answer_places(batch.labels)
    targets, lengths = reading_targets(batch.texts)
    arrays = (batch.pixels, batch.token_ids, at, wanted, targets, lengths)
    pixels, *numbers = (torch.from_numpy(array) for array in arrays)
    return Drawn(pixels, *(one.long() for one in numbers))


def test_patches_are_the_packages(batch: Batch) -> None:
    found = patches_of(normalised(torch.from_numpy(batch.pixels)), video=False)
    for image, patches in zip(batch.pixels[:, 0], found, strict=True):
        expected = patchify(torch.from_numpy(image)[None], (0.5,) * 3, (0.5,) * 3, 16, 2, 2, False, torch.float32)
        torch.testing.assert_close(patches, expected, atol=1e-6, rtol=0)


def test_language_loss_is_the_mean_over_answer_tokens(batch: Batch) -> None:
    model = oracle(EMBEDDED, "qwen3-vl").model
    place, x = batch.layout, normalised(torch.from_numpy(batch.pixels))
    with torch.no_grad():
        found = losses(model, ReadingHead(256), place, torch.from_numpy(batch.positions), drawn_from(batch), x)
        layout = Layout(place.grid, place.items, place.spans)
        arrays = (torch.from_numpy(array) for array in (batch.token_ids, batch.positions))
        states, _ = hidden_states(model, patches_of(x, video=False), *arrays, layout)
        logits = model.lm_head(states)
    labels = torch.from_numpy(batch.labels)
    expected = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=IGNORED)
    assert float(found.language) == pytest.approx(float(expected), rel=1e-4, abs=1e-6)
    assert float(found.reading) > 0 and 0 <= float(found.right) <= 1


def test_ctc_loss_is_torchs() -> None:
    """Value and gradient, with doubled characters and a text that does not fit."""
    torch.manual_seed(0)
    scores = torch.randn(20, 5, 97, requires_grad=True)
    targets, lengths = torch.randint(1, 97, (5, 16)), torch.tensor([3, 1, 16, 9, 12])
    targets[0, 1] = targets[0, 0]
    targets[4] = 7  # twelve equal characters need 23 steps
    steps = scores.log_softmax(-1)
    found = ctc_loss(steps, targets, lengths)
    expected = F.ctc_loss(steps, targets, torch.full((5,), 20), lengths, zero_infinity=True)
    assert float(found.detach()) == pytest.approx(float(expected.detach()), rel=1e-5)
    (found_gradient,) = torch.autograd.grad(found, scores, retain_graph=True)
    (expected_gradient,) = torch.autograd.grad(expected, scores)
    torch.testing.assert_close(found_gradient, expected_gradient, atol=1e-5, rtol=1e-4)


def test_reading_targets_are_the_characters() -> None:
    targets, lengths = reading_targets(("A b", "é", ""))
    assert targets[0, :3].tolist() == [ord("A") - 31, 1, ord("b") - 31] and lengths.tolist() == [3, 1, 0]
    assert targets[1, 0] == 96


def test_exact_counts_right_answers() -> None:
    """The counter agrees with asking the model one by one through the package's own evaluation: some right, not all."""
    tokenizer = Tokenizer.from_folder(EMBEDDED)
    model = oracle(EMBEDDED, "qwen3-vl").model
    source = batches(EMBEDDED, "heldout", 8, 0, 1, 1.0, {"video": 1.0})
    right = exact(model, next(source), tokenizer, tokenizer.id_of("<|im_end|>"), CPU)
    assert 2 <= right <= 8 and isinstance(right, int | np.integer)
