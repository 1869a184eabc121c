"""Linear maps with what follows them."""

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F

from sightline.ops.dispatch import ExampleMaker, Tolerance, op


def _examples(make: ExampleMaker) -> Iterator[dict[str, Any]]:
    for rows, size, out in ((5, 24, 40), (33, 128, 72)):
        weight = make.normal(out, size) * size**-0.5
        yield {"x": make.normal(rows, size), "weight": weight, "bias": make.normal(out)}
        yield {"x": make.normal(rows, size), "weight": weight, "bias": None}


@op(examples=_examples, tolerances={torch.float32: Tolerance(1e-5, 1e-4), torch.bfloat16: Tolerance(2e-2, 1.6e-2)})
def linear_gelu_tanh(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """gelu_tanh(x weight^T + bias). x [rows, size], weight [out, size], bias [out] or None."""
    return F.gelu(F.linear(x, weight, bias), approximate="tanh")


def _has_epilogue(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> bool:
    return x.is_cuda and x.dtype == torch.bfloat16 and x.ndim == 2 and bias is not None


@linear_gelu_tanh.twin("cublaslt", when=_has_epilogue)
def linear_gelu_tanh_cublaslt(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Bias and GELU in the product's epilogue."""
    assert bias is not None
    return torch._addmm_activation(bias, x, weight.T, use_gelu=True)
