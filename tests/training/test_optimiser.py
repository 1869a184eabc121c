"""The optimiser's flat buffers are the model's weights, and its two rules move them as they should."""

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "training"))

from optimiser import Optimiser, _orthogonal


def two_layers() -> torch.nn.Sequential:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(12, 24), torch.nn.Tanh(), torch.nn.Linear(24, 12))


def test_weights_stay_what_they_were_and_are_views() -> None:
    model = two_layers()
    before = [parameter.detach().clone() for parameter in model.parameters()]
    optimiser = Optimiser(list(model.named_parameters()), torch.float32)
    assert all(torch.equal(one, two) for one, two in zip(before, model.parameters(), strict=True))
    optimiser.rounded.add_(1.0)
    assert all(torch.equal(one + 1, two) for one, two in zip(before, model.parameters(), strict=True))


def test_it_learns() -> None:
    """A rotation, to a hundredth of the error at the start. Red when a gradient goes to the wrong place."""
    model = two_layers()
    optimiser = Optimiser(list(model.named_parameters()), torch.float32, decay=0.0)
    inputs = torch.randn(256, 12)
    wanted = 0.3 * inputs @ torch.linalg.qr(torch.randn(12, 12))[0]
    errors = []
    for step in range(400):
        optimiser.rate.fill_(0.02 * (1 - step / 400))
        error = (model(inputs) - wanted).square().mean()
        error.backward()
        optimiser.collect()
        optimiser.step(1)
        errors.append(float(error.detach()))
    assert errors[-1] < errors[0] / 100


def test_gradients_of_several_batches_are_averaged() -> None:
    """Two halves, one after the other, move the weights as the whole does."""
    inputs = torch.randn(8, 12, generator=torch.Generator().manual_seed(1))
    moved = []
    for parts in ((inputs,), inputs.chunk(2)):
        model = two_layers()
        optimiser = Optimiser(list(model.named_parameters()), torch.float32)
        optimiser.rate.fill_(0.1)
        for part in parts:
            model(part).square().mean().backward()
            optimiser.collect()
        optimiser.step(len(parts))
        assert not optimiser.rounded_gradient.any() and not optimiser.gradient.any()
        moved.append(optimiser.weights)
    torch.testing.assert_close(*moved, atol=1e-6, rtol=1e-4)


def test_orthogonal_keeps_directions_and_levels_their_strengths() -> None:
    torch.manual_seed(0)
    for shape in ((3, 40, 20), (2, 16, 16), (2, 8, 64)):
        matrices = torch.randn(shape)
        left, _, right = torch.linalg.svd(matrices, full_matrices=False)
        found = _orthogonal(matrices)
        strengths = torch.linalg.svdvals(found)
        assert float(strengths.max()) < 1.4
        nearest = left @ right
        likeness = (found * nearest).sum((1, 2)) / (found.norm(dim=(1, 2)) * nearest.norm(dim=(1, 2)))
        assert float(likeness.min()) > 0.9
