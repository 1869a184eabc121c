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
from fast_forward import Layout, hidden_states  # noqa: E402
from oracle import oracle  # noqa: E402
from sightline.models.locate import EMBEDDED  # noqa: E402
from sightline.ops.pixels import patchify  # noqa: E402
from sightline.prompt.tokenizer import Tokenizer  # noqa: E402
from train import ReadingHead, exact, losses, patches_of, reading_loss  # noqa: E402

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def batch() -> Batch:
    return next(batches(EMBEDDED, "heldout", 4, 0, 1, 1.0, {"sign": 1.0}))


def test_patches_are_the_packages(batch: Batch) -> None:
    found = patches_of(torch.from_numpy(batch.pixels), video=False)
    for image, patches in zip(batch.pixels[:, 0], found, strict=True):
        expected = patchify(torch.from_numpy(image)[None], (0.5,) * 3, (0.5,) * 3, 16, 2, 2, False, torch.float32)
        torch.testing.assert_close(patches, expected, atol=1e-6, rtol=0)


def test_language_loss_is_the_mean_over_answer_tokens(batch: Batch) -> None:
    model = oracle(EMBEDDED, "qwen3-vl").model
    with torch.no_grad():
        language, reading, right = losses(model, ReadingHead(256), batch, CPU)
        pixels = patches_of(torch.from_numpy(batch.pixels), video=False)
        with torch.autocast("cpu", torch.bfloat16):
            states, _ = hidden_states(
                model,
                pixels,
                torch.from_numpy(batch.token_ids),
                torch.from_numpy(batch.positions),
                Layout(batch.grid, batch.items, batch.spans),
            )
            logits = model.lm_head(states).float()
    labels = torch.from_numpy(batch.labels)
    expected = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=IGNORED)
    assert float(language) == pytest.approx(float(expected), rel=1e-2)
    assert reading is not None and torch.isfinite(reading) and 0 <= float(right) <= 1


def test_reading_loss_is_small_for_the_right_characters(batch: Batch) -> None:
    """A head that says the text, spread over its steps, has a loss near 0; one that says another text does not."""

    class Says(ReadingHead):
        def forward(self, hidden: torch.Tensor, grid: tuple[int, int, int]) -> torch.Tensor:
            steps = torch.full((64, len(batch.texts), 97), -20.0)
            steps[..., 0] = 0.0
            for row, text in enumerate(self.texts):
                for place, char in enumerate(text):
                    steps[2 * place, row, 0], steps[2 * place, row, ord(char) - 31] = -20.0, 0.0
            return steps.log_softmax(-1)

    head = Says(256)
    head.texts = batch.texts
    assert float(reading_loss(head, torch.zeros(4, 1, 256), batch)) < 0.01
    head.texts = tuple(text[::-1] + "x" for text in batch.texts)
    assert float(reading_loss(head, torch.zeros(4, 1, 256), batch)) > 1.0


def test_exact_counts_right_answers() -> None:
    """The counter agrees with asking the model one by one through the package's own evaluation: some right, not all."""
    tokenizer = Tokenizer.from_folder(EMBEDDED)
    model = oracle(EMBEDDED, "qwen3-vl").model
    source = batches(EMBEDDED, "heldout", 8, 0, 1, 1.0, {"video": 1.0})
    right = exact(model, next(source), tokenizer, tokenizer.id_of("<|im_end|>"), CPU)
    assert 2 <= right <= 8 and isinstance(right, int | np.integer)
