"""Normalisations, alone and fused with the adds before them. Sums in float32, whatever the input.

A `shift` is added to what is normalised and to nothing else: a residual stream may be kept without a sum of biases that is
known beforehand.
"""

from collections.abc import Iterator
from typing import Any, Literal

import torch
import torch.nn.functional as F

from sightline.ops.dispatch import ExampleMaker, Tolerance, op

GateActivation = Literal["silu", "sigmoid"]
_TOLERANCES = {torch.float32: Tolerance(1e-5, 1e-5), torch.bfloat16: Tolerance(1e-2, 1.6e-2)}
_SIZES = ((7, 72), (33, 128), (9, 1152), (5, 4096))


def _inputs(make: ExampleMaker, *vectors: str) -> Iterator[dict[str, Any]]:
    """Without shift and with it."""
    for rows, size in _SIZES:
        example = {"x": make.normal(rows, size), **{name: make.normal(size) for name in vectors}}
        yield {**example, "eps": 1e-6}
        yield {**example, "eps": 1e-6, "shift": make.normal(size, dtype=torch.float32)}


def _rms_examples(make: ExampleMaker) -> Iterator[dict[str, Any]]:
    yield from _inputs(make, "weight")
    yield {"x": make.normal(6, 4, 128), "weight": make.normal(128), "eps": 1e-5}  # per head
    yield {"x": make.normal(6, 4, 256), "weight": make.normal(256, dtype=torch.float32), "eps": 1e-6}  # zero-centred
    yield {"x": make.normal(6, 300)[:, 20:180], "weight": make.normal(160), "eps": 1e-5}  # rows apart


@op(examples=_rms_examples, tolerances=_TOLERANCES)
def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float, shift: torch.Tensor | None = None) -> torch.Tensor:
    """x / rms(x) over the last axis, rounded to x's dtype, then times weight (the order transformers rounds in).

    x [..., size], weight [size], shift [size] float32: x + shift is normalised, in float32. With a float32 weight (of a
    zero-centred norm) it is rounded once, after the weight.
    """
    wide = x.float() if shift is None else x.float() + shift
    scaled = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    if weight.dtype != x.dtype:
        return (scaled * weight).to(x.dtype)
    return weight * scaled.to(x.dtype)


def _add_rms_examples(make: ExampleMaker) -> Iterator[dict[str, Any]]:
    for rows, size in _SIZES:
        example = {"x": make.normal(rows, size), "residual": make.normal(rows, size), "eps": 1e-6}
        yield {**example, "weight": make.normal(size)}
    yield {**example, "weight": make.normal(size, dtype=torch.float32)}  # zero-centred


@op(examples=_add_rms_examples, tolerances=_TOLERANCES)
def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """(rms_norm(x + residual), x + residual); the sum is rounded to x's dtype before it is normalised."""
    total = residual + x
    return rms_norm.definition(total, weight, eps), total


def _add_rms_rows_examples(make: ExampleMaker) -> Iterator[dict[str, Any]]:
    for tokens, size in _SIZES:
        rows = make.normal(4, 3 * size)[:, size : 2 * size]  # the second of three parts of wider rows
        index = make.integers(-1, 4, tokens, dtype=torch.int64)
        example = {"x": make.normal(tokens, size), "residual": make.normal(tokens, size), "weight": make.normal(size)}
        yield {**example, "eps": 1e-6, "rows": rows, "index": index}
    yield {**example, "eps": 1e-6, "rows": rows, "index": make.tensor([-1] * tokens, torch.int64)}


@op(examples=_add_rms_rows_examples, tolerances=_TOLERANCES)
def add_rms_norm_rows(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float, rows: torch.Tensor, index: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """(rms_norm(total), total), where total[t] is residual[t] + x[t], and + rows[index[t]] where index[t] >= 0.

    Rounded after each add, as transformers does. x and residual [tokens, size], weight [size], rows [n, size] possibly a
    strided view, index [tokens] int64, -1 for none.
    """
    total = residual + x
    total = torch.where((index >= 0)[:, None], total + rows[index.clamp(min=0)], total)
    return rms_norm.definition(total, weight, eps), total


def _layer_examples(make: ExampleMaker) -> Iterator[dict[str, Any]]:
    yield from _inputs(make, "weight", "bias")


@op(examples=_layer_examples, tolerances=_TOLERANCES)
def layer_norm(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float, shift: torch.Tensor | None = None
) -> torch.Tensor:
    """Mean and variance over the last axis. x [..., size], weight and bias [size].

    shift [size] float32: x + shift is normalised, in float32.
    """
    if shift is None:
        return F.layer_norm(x, (x.shape[-1],), weight, bias, eps)
    return F.layer_norm(x.float() + shift, (x.shape[-1],), weight.float(), bias.float(), eps).to(x.dtype)


def _gated_examples(make: ExampleMaker) -> Iterator[dict[str, Any]]:
    for tokens, heads, size, activation in ((7, 3, 128, "silu"), (5, 2, 32, "sigmoid"), (1, 48, 128, "silu")):
        wider = make.normal(tokens, 24 + heads * size)  # the gate is the end of wider rows
        weight = make.normal(size, dtype=torch.float32)
        x = make.normal(tokens, heads, size)
        yield {"x": x, "gate": wider[:, 24:], "weight": weight, "eps": 1e-6, "activation": activation}


@op(examples=_gated_examples, tolerances=_TOLERANCES)
def gated_rms_norm(
    x: torch.Tensor, gate: torch.Tensor, weight: torch.Tensor, eps: float, activation: GateActivation
) -> torch.Tensor:
    """rms_norm(x) * silu(gate), or * sigmoid(gate), per head. Returns [tokens, heads * size].

    x [tokens, heads, size], gate [tokens, heads * size], possibly a strided view, weight [size] float32. What is normalised is
    rounded to x's dtype before the weight; the gate is applied in float32.
    """
    wide = x.float()
    scaled = (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)).to(x.dtype)
    opening = gate.float().unflatten(1, x.shape[1:])
    opening = F.silu(opening) if activation == "silu" else opening.sigmoid()
    return (weight * scaled.float() * opening).to(x.dtype).flatten(1)
