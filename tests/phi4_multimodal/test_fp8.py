"""In 8-bit floats: the decoder's matrices are, pairs of adapters are not, and the numbers are those of the rounded weights."""

from pathlib import Path

import pytest
import torch

from parity.conversations import conversations
from parity.subject import subject
from plain_loop import SingleSequence
from sightline.models.linear import Linear, WeightMatrix
from sightline.models.load import load_model
from sightline.models.model import VisionLanguageModel
from sightline.models.quantise import Quantiser
from sightline.models.registry import read_model_spec
from sightline.types import Request

CPU = torch.device("cpu")


def load(folder: Path, quantiser: Quantiser | None = None) -> VisionLanguageModel:
    return load_model(read_model_spec(folder), folder, CPU, torch.float32, 8192, quantiser=quantiser)


def test_pairs_stay_as_they_are(phi4: Path) -> None:
    """Red if the pair of a matrix is quantised with it, or if a matrix of the tower or the decoder is forgotten."""
    before, after = load(phi4), load(phi4, Quantiser("fp8", tower=True))
    quantised = {name for name, module in after.named_modules() if isinstance(module, WeightMatrix) and module.is_fp8}
    matrices = {name for name, module in before.named_modules() if isinstance(module, Linear)}
    assert quantised == {name for name in matrices if name.startswith(("text.layers.", "vision.blocks."))}
    for name, parameter in after.named_parameters():
        if "low_rank" in name:
            assert torch.equal(parameter, before.get_parameter(name))


@pytest.mark.parametrize("name", ["text only", "image first"])
def test_numbers_are_those_of_the_rounded_weights(phi4: Path, name: str) -> None:
    """Against float32 with the same rounded weights: what is left is the rounding of inputs, 3 bits. Red if a pair is left out,
    which is many times as much."""
    request = subject(phi4).request(conversations()[name])
    model, rounded = load(phi4, Quantiser("fp8")), load(phi4)
    for key, module in model.named_modules():
        if isinstance(module, WeightMatrix) and module.weight_scale is not None:
            rounded.get_submodule(key).weight.data = module.weight.float() * module.weight_scale[:, None]  # type: ignore[union-attr]
    rows = subject(phi4).rows(request)

    def logits(of: VisionLanguageModel, asked: Request) -> torch.Tensor:
        return SingleSequence(of, asked, len(asked), page_size=16).prefill(rows, all_logits=True)

    found, expected = logits(model, request), logits(rounded, request)
    relative = (found - expected).square().mean().sqrt() / expected.square().mean().sqrt()
    assert relative < 0.15
    if request.adapter >= 0:
        without = logits(rounded, Request(**{**vars(request), "adapter": -1}))
        assert (without - expected).square().mean().sqrt() > 3 * (found - expected).square().mean().sqrt()
