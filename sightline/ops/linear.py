"""Linear maps, alone and with what follows them."""

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F

from sightline.ops.activations import silu_mul
from sightline.ops.dispatch import ExampleMaker, Tolerance, op

_TOLERANCES = {torch.float32: Tolerance(1e-5, 1e-4), torch.bfloat16: Tolerance(2e-2, 1.6e-2)}
CUBLAS, CUBLASLT, TWO_OPS = "cublas", "cublaslt", "two_ops"
FEW_ROWS = 64  # up to so many, a product lasts as long as it takes to read its weights: it may have a kernel of its own


def _examples(make: ExampleMaker) -> Iterator[dict[str, Any]]:
    for rows, size, out in ((5, 24, 40), (33, 128, 72)):
        weight = make.normal(out, size) * size**-0.5
        yield {"x": make.normal(rows, size), "weight": weight, "bias": make.normal(out)}
        yield {"x": make.normal(rows, size), "weight": weight, "bias": None}
    many = {"x": make.normal(8200, 40), "weight": make.normal(72, 40) / 8}  # rows that no tile divides
    yield {**many, "bias": make.normal(72)}
    yield {**many, "bias": None}
    yield {"x": make.normal(2048, 40), "weight": make.normal(2048, 40) / 8, "bias": make.normal(2048)}  # as many as columns


@op(examples=_examples, tolerances=_TOLERANCES)
def linear_gelu_tanh(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """gelu_tanh(x weight^T + bias). x [rows, size], weight [out, size], bias [out] or None."""
    return F.gelu(F.linear(x, weight, bias), approximate="tanh")


def _has_epilogue(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> bool:
    return x.is_cuda and x.dtype == torch.bfloat16 and x.ndim == 2 and bias is not None


@linear_gelu_tanh.twin(CUBLASLT, when=_has_epilogue, recordable=True)
def linear_gelu_tanh_cublaslt(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Bias and GELU in the product's epilogue."""
    assert bias is not None
    return torch._addmm_activation(bias, x, weight.T, use_gelu=True)


def _add_examples(make: ExampleMaker) -> Iterator[dict[str, Any]]:
    for example in _examples(make):
        yield {"total": make.normal(example["x"].shape[0], example["weight"].shape[0]), **example}


@op(examples=_add_examples, tolerances=_TOLERANCES)
def add_linear(total: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """total + x weight^T + bias, in place. total [rows, out], x [rows, size], weight [out, size], bias [out] or None."""
    return total.add_(F.linear(x, weight, bias))


def _adds_in_place(total: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> bool:
    return total.is_cuda and bias is None and total.is_contiguous() and x.ndim == 2


@add_linear.twin(CUBLAS, when=_adds_in_place, recordable=True)
def add_linear_cublas(total: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """The product is added to what is there, and rounded once: no pass over memory of its own."""
    return total.addmm_(x, weight.T)


@op(examples=_examples, tolerances=_TOLERANCES)
def tower_linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """As `linear`, for a tower, which runs beside decoding: no twin of this one has memory that another stream may be using."""
    return F.linear(x, weight, bias)


def _few_rows_examples(make: ExampleMaker) -> Iterator[dict[str, Any]]:
    """Rows at and beside the sizes of tiles; sizes that no tile divides, and some that every tile does."""
    for rows, size, out in ((1, 24, 40), (3, 200, 72), (16, 600, 130), (17, 256, 96), (33, 512, 64), (64, 328, 48)):
        weight = make.normal(out, size) * size**-0.5
        yield {"x": make.normal(rows, size), "weight": weight, "bias": None}
        yield {"x": make.normal(rows, size), "weight": weight, "bias": make.normal(out)}
    for rows in (70, 2100):
        yield {"x": make.normal(rows, 64), "weight": make.normal(32, 64) / 8, "bias": None}


@op(examples=_few_rows_examples, tolerances=_TOLERANCES)
def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """x weight^T + bias. x [rows, size], weight [out, size], bias [out] or None."""
    return F.linear(x, weight, bias)


@op(examples=_few_rows_examples, tolerances={torch.float32: Tolerance(1e-5, 1e-4), torch.bfloat16: Tolerance(3e-2, 3e-2)})
def linear_silu_mul(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """silu(gate) * up, where gate and up are the halves of x weight^T + bias. weight [2 * out, size] -> [rows, out]."""
    gate, up = F.linear(x, weight, bias).chunk(2, dim=-1)
    return F.silu(gate) * up


@linear_silu_mul.twin(TWO_OPS, when=lambda x, weight, bias: x.is_cuda, recordable=True)
def linear_silu_mul_in_two(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """The library's product, then one pass."""
    return silu_mul(F.linear(x, weight, bias))
