"""Linear maps, alone and with what follows them."""

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F

from sightline.ops.activations import silu_mul
from sightline.ops.dispatch import ExampleMaker, Tolerance, op
from sightline.ops.workspace import Part, Workspace, bytes_for

_TOLERANCES = {torch.float32: Tolerance(1e-5, 1e-4), torch.bfloat16: Tolerance(2e-2, 1.6e-2)}
CUBLAS, CUBLASLT, TWO_OPS = "cublas", "cublaslt", "two_ops"
# What a small-M GEMM that splits its sums takes of a workspace: how many parts of a tile are written, and the parts.
COUNTERS, PARTS = 2**14, 4 * 2**20
SPLIT_SUMS: tuple[Part, Part] = ((torch.int32, (COUNTERS,)), (torch.float32, (PARTS,)))
SPLIT_SUMS_BYTES = bytes_for(*SPLIT_SUMS)
SMALL_M = 64  # up to so many, a GEMM takes as long as reading its weights: it may have a kernel of its own


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


@linear_gelu_tanh.kernel(CUBLASLT, when=_has_epilogue, graph_safe=True)
def linear_gelu_tanh_cublaslt(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Bias and GELU in the product's epilogue."""
    assert bias is not None
    return torch._addmm_activation(bias, x, weight.T, use_gelu=True)


def _add_examples(make: ExampleMaker) -> Iterator[dict[str, Any]]:
    for example in _examples(make):
        yield {"residual": make.normal(example["x"].shape[0], example["weight"].shape[0]), **example}


@op(examples=_add_examples, tolerances=_TOLERANCES)
def add_linear(residual: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """residual + x weight^T + bias, in place. residual [rows, out], x [rows, size], weight [out, size], bias [out] or None."""
    return residual.add_(F.linear(x, weight, bias))


def _adds_in_place(residual: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> bool:
    return residual.is_cuda and bias is None and residual.is_contiguous() and x.ndim == 2


@add_linear.kernel(CUBLAS, when=_adds_in_place, graph_safe=True)
def add_linear_cublas(residual: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """The product is added to what is there, and rounded once: no pass over memory of its own."""
    return residual.addmm_(x, weight.T)


def _to_float32_examples(make: ExampleMaker) -> Iterator[dict[str, Any]]:
    for rows, size, out in ((1, 24, 40), (33, 4096, 128)):
        yield {"x": make.normal(rows, size), "weight": make.normal(out, size) * size**-0.5}


@op(examples=_to_float32_examples, tolerances={dtype: Tolerance(1e-5, 1e-4) for dtype in (torch.float32, torch.bfloat16)})
def linear_to_float32(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """x weight^T in float32, not rounded to the dtype of x and weight. x [rows, size], weight [out, size]."""
    return F.linear(x.float(), weight.float())


def _sums_in_float32(x: torch.Tensor, weight: torch.Tensor) -> bool:
    return x.is_cuda and x.dtype == weight.dtype and x.dtype in (torch.bfloat16, torch.float16)


@linear_to_float32.kernel(CUBLAS, when=_sums_in_float32, graph_safe=True)
def linear_to_float32_cublas(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return torch.mm(x, weight.T, out_dtype=torch.float32)


def _small_m_examples(make: ExampleMaker) -> Iterator[dict[str, Any]]:
    """Rows at and beside the sizes of tiles; sizes that no tile divides, and some that every tile does."""
    for rows, size, out in ((1, 24, 40), (3, 200, 72), (16, 600, 130), (17, 256, 96), (33, 512, 64), (64, 328, 48)):
        weight = make.normal(out, size) * size**-0.5
        yield {"x": make.normal(rows, size), "weight": weight, "bias": None}
        yield {"x": make.normal(rows, size), "weight": weight, "bias": make.normal(out)}
    for rows in (70, 2100):
        yield {"x": make.normal(rows, 64), "weight": make.normal(32, 64) / 8, "bias": None}


def _linear_examples(make: ExampleMaker) -> Iterator[dict[str, Any]]:
    workspace = Workspace("split sums", SPLIT_SUMS_BYTES, make.device)
    for example in _small_m_examples(make):
        yield {**example, "workspace": workspace}
    yield {**example, "workspace": None}


@op(examples=_linear_examples, tolerances=_TOLERANCES)
def linear(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, workspace: Workspace | None = None
) -> torch.Tensor:
    """x weight^T + bias. x [rows, size], weight [out, size], bias [out] or None.

    `workspace` (SPLIT_SUMS_BYTES) is for kernels that split sums of small-M GEMMs; without it they are not chosen, as in a
    tower, which runs on another stream than the decoder.
    """
    return F.linear(x, weight, bias)


@op(examples=_small_m_examples, tolerances={torch.float32: Tolerance(1e-5, 1e-4), torch.bfloat16: Tolerance(3e-2, 3e-2)})
def linear_silu_mul(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """silu(gate) * up, where gate and up are the halves of x weight^T + bias. weight [2 * out, size] -> [rows, out]."""
    gate, up = F.linear(x, weight, bias).chunk(2, dim=-1)
    return F.silu(gate) * up


@linear_silu_mul.kernel(TWO_OPS, when=lambda x, weight, bias: x.is_cuda, graph_safe=True)
def linear_silu_mul_in_two(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """The library's product, then one pass."""
    return silu_mul(F.linear(x, weight, bias))
