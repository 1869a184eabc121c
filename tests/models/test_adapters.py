"""Low-rank pairs of several adapters: each token gets what its own one adds, in every form that a product has."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from engine.harness import loaded
from sightline.errors import ConfigError
from sightline.models.adapters import AdapterGates, add_pairs
from sightline.models.experts import Experts
from sightline.models.fp8 import Fp8Weight
from sightline.models.layers import GatedMLP
from sightline.models.linear import Linear
from sightline.spec import AdapterSpec, ExpertsSpec

ADAPTERS = (AdapterSpec("a", 4, 0.5), AdapterSpec("b", 12, 3.0))
RANKS = 16
INDEX = torch.tensor([0, -1, 1, 1, -1, 0, 1])


def gates() -> torch.Tensor:
    return AdapterGates(ADAPTERS, torch.device("cpu"), torch.float32).of(INDEX)


def random(module: torch.nn.Module, seed: int = 0) -> torch.nn.Module:
    generator = torch.Generator().manual_seed(seed)
    for parameter in module.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator) * parameter.shape[-1] ** -0.5
    return module.requires_grad_(False)


def adapted(size: int, out: int, seed: int = 0, bias: bool = False) -> Linear:
    linear = Linear(size, out, bias)
    linear.add_low_rank_pair(RANKS)
    random(linear, seed)
    return linear


def plain(linear: Linear, x: torch.Tensor, weight: torch.Tensor | None = None) -> torch.Tensor:
    """Row by row, with the adapter merged into the matrix."""
    assert linear.low_rank is not None
    down, up = linear.low_rank.down.split((4, 12)), linear.low_rank.up.split((4, 12), 1)
    rows = []
    for row, adapter in zip(x, INDEX.tolist(), strict=True):
        merged = linear.weight if weight is None else weight
        if adapter >= 0:
            merged = merged + ADAPTERS[adapter].scale * up[adapter] @ down[adapter]
        rows.append(F.linear(row, merged, linear.bias))
    return torch.stack(rows)


@pytest.mark.parametrize("bias", [False, True])
def test_each_row_has_its_own_adapter(bias: bool) -> None:
    """Red if a row gets another's pair, a scale is that of another adapter, or rows without one get anything."""
    linear, x = adapted(32, 48, bias=bias), torch.randn(7, 32, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(linear(x, gates()), plain(linear, x))
    torch.testing.assert_close(linear(x), F.linear(x, linear.weight, linear.bias), atol=0, rtol=0)


def test_forms_of_a_product() -> None:
    """Added to a residual, gated, a whole MLP."""
    x, residual = (torch.randn(7, 32, generator=torch.Generator().manual_seed(seed)) for seed in (1, 2))
    linear = adapted(32, 32)
    torch.testing.assert_close(linear.add_to(residual.clone(), x, gates()), residual + plain(linear, x))
    mlp = GatedMLP(32, 24, False)
    add_pairs(mlp, ADAPTERS)
    random(mlp, 3)
    gate, up = plain(mlp.gate_up, x).chunk(2, 1)
    expected = plain(mlp.down, F.silu(gate) * up)
    torch.testing.assert_close(mlp(x, gates()), expected)
    torch.testing.assert_close(mlp.add_to(residual.clone(), x, gates()), residual + expected)


def test_pairs_stay_plain_beside_8_bit_floats() -> None:
    """Red if a pair is quantised with its matrix, or left out where the matrix is."""
    linear, x = adapted(32, 48), torch.randn(7, 32, generator=torch.Generator().manual_seed(1))
    values = Fp8Weight.of(linear.weight)
    linear.set_fp8(values)
    base = linear(x)
    difference = linear(x, gates()) - base
    assert linear.low_rank is not None and linear.low_rank.down.dtype == torch.float32
    exact = adapted(32, 48)
    torch.testing.assert_close(difference, plain(exact, x) - F.linear(x, exact.weight), atol=1e-5, rtol=1e-5)
    assert difference[INDEX < 0].abs().max() == 0


class Sum:
    """A group of two ranks whose other part of the sum is known."""

    def __init__(self, other: torch.Tensor) -> None:
        self.other = other

    def all_reduce_(self, value: torch.Tensor) -> torch.Tensor:
        return value.add_(self.other)


def test_of_a_row_placed_matrix_ranks_add_up_pairs_too() -> None:
    """A is cut as the inputs are, B is whole; the bias is added once. Red if a pair is added after the sum, or twice."""
    whole, x = adapted(32, 48, bias=True), torch.randn(7, 32, generator=torch.Generator().manual_seed(1))
    assert whole.low_rank is not None

    def part(start: int, end: int) -> Linear:
        assert whole.low_rank is not None
        rank = adapted(end - start, 48, bias=True)
        rank.weight.data, rank.bias = whole.weight[:, start:end], whole.bias
        assert rank.low_rank is not None
        rank.low_rank.down.data, rank.low_rank.up.data = whole.low_rank.down[:, start:end], whole.low_rank.up
        return rank

    other, mine = part(0, 20), part(20, 32)
    other.bias = None
    mine.group = Sum(other(x[:, :20], gates()))  # type: ignore[assignment]
    torch.testing.assert_close(mine(x[:, 20:], gates()), plain(whole, x))


def test_experts_cannot_have_adapters() -> None:
    with pytest.raises(ConfigError, match="experts cannot have adapters"):
        add_pairs(Experts(ExpertsSpec(4, 2, 16), 32), ADAPTERS)


def test_models_without_adapters_have_nothing_of_them(tiny_checkpoints: dict[str, Path]) -> None:
    """Red if others carry parameters or tables for a thing that they do not have."""
    model = loaded(tiny_checkpoints["qwen3-vl"]).model
    assert model.text.adapter_gates is None
    assert not any("low_rank" in name for name, _ in model.named_modules())
