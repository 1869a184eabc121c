"""Normalisations, alone and fused with the residual add before them. Sums in float32, whatever the input."""

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F

from sightline.ops.dispatch import ExampleMaker, Tolerance, op

_TOLERANCES = {torch.float32: Tolerance(1e-5, 1e-5), torch.bfloat16: Tolerance(1e-2, 1.6e-2)}
_SIZES = ((7, 72), (33, 128), (5, 4096))


def _rms_examples(make: ExampleMaker) -> Iterator[dict[str, Any]]:
    for rows, size in _SIZES:
        yield {"x": make.normal(rows, size), "weight": make.normal(size), "eps": 1e-6}
    yield {"x": make.normal(6, 4, 128), "weight": make.normal(128), "eps": 1e-5}  # per head


@op(examples=_rms_examples, tolerances=_TOLERANCES)
def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x / rms(x) over the last axis, rounded to x's dtype, then times weight (the order transformers rounds in).

    x [..., size], weight [size].
    """
    wide = x.float()
    scaled = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return weight * scaled.to(x.dtype)


def _add_rms_examples(make: ExampleMaker) -> Iterator[dict[str, Any]]:
    for rows, size in _SIZES:
        yield {"x": make.normal(rows, size), "residual": make.normal(rows, size), "weight": make.normal(size), "eps": 1e-6}


@op(examples=_add_rms_examples, tolerances=_TOLERANCES)
def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """(rms_norm(x + residual), x + residual); the sum is rounded to x's dtype before it is normalised."""
    total = residual + x
    return rms_norm.definition(total, weight, eps), total


def _layer_examples(make: ExampleMaker) -> Iterator[dict[str, Any]]:
    for rows, size in _SIZES:
        yield {"x": make.normal(rows, size), "weight": make.normal(size), "bias": make.normal(size), "eps": 1e-6}


@op(examples=_layer_examples, tolerances=_TOLERANCES)
def layer_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float) -> torch.Tensor:
    """Mean and variance over the last axis. x [..., size], weight and bias [size]."""
    return F.layer_norm(x, (x.shape[-1],), weight, bias, eps)


def _add_layer_examples(make: ExampleMaker) -> Iterator[dict[str, Any]]:
    for example in _layer_examples(make):
        yield {**example, "residual": make.normal(*example["x"].shape)}


@op(examples=_add_layer_examples, tolerances=_TOLERANCES)
def add_layer_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """(layer_norm(x + residual), x + residual); the sum is rounded to x's dtype before it is normalised."""
    total = residual + x
    return layer_norm.definition(total, weight, bias, eps), total
