"""Activations of the towers and the language models."""

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F

from sightline.ops.dispatch import ExampleMaker, Tolerance, op

_TOLERANCES = {torch.float32: Tolerance(1e-6, 1e-5), torch.bfloat16: Tolerance(1e-2, 1.6e-2)}


def _examples(make: ExampleMaker) -> Iterator[dict[str, Any]]:
    for shape in ((5, 72), (33, 4304)):
        yield {"x": 3 * make.normal(*shape)}


@op(examples=_examples, tolerances=_TOLERANCES)
def gelu(x: torch.Tensor) -> torch.Tensor:
    """Exact GELU, with the error function: what the mergers use."""
    return F.gelu(x)


@op(examples=_examples, tolerances=_TOLERANCES)
def gelu_tanh(x: torch.Tensor) -> torch.Tensor:
    """GELU with the hyperbolic tangent, where linear_gelu_tanh cannot be used."""
    return F.gelu(x, approximate="tanh")


@op(examples=_examples, tolerances=_TOLERANCES)
def quick_gelu(x: torch.Tensor) -> torch.Tensor:
    """x * sigmoid(1.702 x): an approximation of GELU that some towers were trained with. [rows, size]."""
    return x * torch.sigmoid(1.702 * x)


def _gate_up_examples(make: ExampleMaker) -> Iterator[dict[str, Any]]:
    for shape in ((5, 96), (33, 6840)):
        yield {"gate_up": 3 * make.normal(*shape)}


@op(examples=_gate_up_examples, tolerances=_TOLERANCES)
def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up for the output of a merged gate-and-up projection. [..., 2 * size] -> [..., size]."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up


def _gate_examples(make: ExampleMaker) -> Iterator[dict[str, Any]]:
    for shape in ((5, 96), (3, 4100)):
        yield {"x": make.normal(*shape), "gate": 3 * make.normal(*shape)}


@op(examples=_gate_examples, tolerances=_TOLERANCES)
def sigmoid_mul(x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    """x * sigmoid(gate): the output gate of attention. [rows, size] both."""
    return x * torch.sigmoid(gate)
