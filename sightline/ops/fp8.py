"""Linear maps whose operands are 8-bit floats (e4m3, largest value 448) with float32 scales.

A matrix of weights has a scale per output channel, or one per block of 128 x 128 as some checkpoints are published. Rows of
activations are quantised as they come: a scale per row, or one per 128 numbers of a row. Either way the largest number of what
shares a scale becomes 448.
"""

import functools
from collections.abc import Iterator
from typing import Any

import torch

from sightline.ops.activations import silu_mul
from sightline.ops.dispatch import EXACT, ExampleMaker, Tolerance, op
from sightline.ops.linear import SPLIT_SUMS_BYTES, TWO_OPS
from sightline.ops.workspace import Workspace

FP8 = torch.float8_e4m3fn
LARGEST = 448.0
INVERSE = 1 / LARGEST  # a factor: what CUDA makes of a division by a constant is not exactly that division
SMALLEST_MAXIMUM = 1e-12  # where a group is all zeros its scale is this / 448, and its numbers stay zero
BLOCK = 128
SIDE_MULTIPLE = 16  # both sides of a matrix must be multiples of this many numbers


def _quantise_examples(make: ExampleMaker) -> Iterator[dict[str, Any]]:
    for rows, size, group in ((1, 32, 32), (7, 144, 144), (3, 12288, 12288), (5, 400, BLOCK), (2, 4096, BLOCK)):
        yield {"x": 5 * make.normal(rows, size), "group": group}
    strided = make.normal(6, 256)[:, :160]
    strided[2] = 0
    strided[3] *= 1e-4
    yield {"x": strided, "group": 160}


@op(examples=_quantise_examples, tolerances={torch.float32: EXACT, torch.bfloat16: EXACT})
def quantise_rows(x: torch.Tensor, group: int) -> tuple[torch.Tensor, torch.Tensor]:
    """x [rows, size] as e4m3 [rows, size] and scales [rows, ceil(size / group)], float32: each `group` numbers share one."""
    return _quantise(x, group)


def _quantise(x: torch.Tensor, group: int) -> tuple[torch.Tensor, torch.Tensor]:
    size = x.shape[1]
    groups = -(-size // group)
    wide = torch.nn.functional.pad(x.float(), (0, groups * group - size)).unflatten(1, (groups, group))
    scale = wide.abs().amax(2).clamp(min=SMALLEST_MAXIMUM) * INVERSE
    values = (wide / scale[:, :, None]).flatten(1)[:, :size].to(FP8)
    return values.contiguous(), scale


def _matrix(make: ExampleMaker, out: int, size: int, scale_shape: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    """A random e4m3 matrix whose products with unit rows are near unit size, scales of all sizes."""
    values = (100 * make.normal(out, size, dtype=torch.float32)).clamp(-LARGEST, LARGEST).to(FP8)
    scale = (0.5 + make.normal(*scale_shape, dtype=torch.float32).abs()) * (0.01 * size**-0.5)
    return values, scale


def _linear_examples(make: ExampleMaker) -> Iterator[dict[str, Any]]:
    for rows, size, out in ((1, 64, 48), (5, 144, 160), (33, 4096, 256)):
        weight, scale = _matrix(make, out, size, (out,))
        yield {"x": make.normal(rows, size), "weight": weight, "weight_scale": scale, "bias": None}
        yield {"x": make.normal(rows, size), "weight": weight, "weight_scale": scale, "bias": make.normal(out)}
    yield from _with_workspace(make, blocks=False)


def _with_workspace(make: ExampleMaker, blocks: bool) -> Iterator[dict[str, Any]]:
    workspace = Workspace("split sums", SPLIT_SUMS_BYTES, make.device)
    for rows, size, out in ((1, 512, 96), (17, 1024, 80), (64, 256, 48)):
        weight, scale = _matrix(make, out, size, (-(-out // BLOCK), -(-size // BLOCK)) if blocks else (out,))
        x = make.normal(rows, size)
        yield {"x": x, "weight": weight, "weight_scale": scale, "bias": make.normal(out), "workspace": workspace}


# Hopper's matrix units add products of 8-bit floats with about 14 bits: some percent of a sum over 4,096.
_TOLERANCES = {torch.float32: Tolerance(1e-4, 1e-4), torch.bfloat16: Tolerance(5e-2, 2e-2)}


@op(examples=_linear_examples, tolerances=_TOLERANCES)
def fp8_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    weight_scale: torch.Tensor,
    bias: torch.Tensor | None,
    workspace: Workspace | None = None,
) -> torch.Tensor:
    """x W^T + bias, x quantised per row.

    x [rows, size], weight e4m3 [out, size], weight_scale [out] float32, bias [out] or None. [rows, out] in x's dtype.
    `workspace`: as for `linear`.
    """
    values, scale = _quantise(x, x.shape[1])
    result = (values.float() @ weight.float().T) * scale * weight_scale
    return (result if bias is None else result + bias.float()).to(x.dtype)


@functools.cache
def has_scaled_mm(device: torch.device) -> bool:
    """torch's product with a scale per row and per column is known to run on Hopper; on Blackwell cuBLAS has none."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) == (9, 0)


def _fits_scaled_mm(
    x: torch.Tensor,
    weight: torch.Tensor,
    weight_scale: torch.Tensor,
    bias: torch.Tensor | None,
    workspace: Workspace | None = None,
) -> bool:
    sides = weight.shape[0] % SIDE_MULTIPLE == 0 and weight.shape[1] % SIDE_MULTIPLE == 0
    return x.dtype == torch.bfloat16 and x.numel() > 0 and sides and weight.is_contiguous() and has_scaled_mm(x.device)


@fp8_linear.kernel("scaled_mm", when=_fits_scaled_mm, graph_safe=True)
def fp8_linear_scaled_mm(
    x: torch.Tensor,
    weight: torch.Tensor,
    weight_scale: torch.Tensor,
    bias: torch.Tensor | None,
    workspace: Workspace | None = None,
) -> torch.Tensor:
    values, scale = quantise_rows(x, x.shape[1])
    return torch._scaled_mm(
        values, weight.T, scale, weight_scale.view(1, -1), bias=bias, out_dtype=x.dtype, use_fast_accum=True
    )


def _block_examples(make: ExampleMaker) -> Iterator[dict[str, Any]]:
    for rows, size, out in ((1, 64, 48), (5, 144, 160), (70, 640, 272)):
        weight, scale = _matrix(make, out, size, (-(-out // BLOCK), -(-size // BLOCK)))
        yield {"x": make.normal(rows, size), "weight": weight, "weight_scale": scale, "bias": None}
        yield {"x": make.normal(rows, size), "weight": weight, "weight_scale": scale, "bias": make.normal(out)}
    yield from _with_workspace(make, blocks=True)


@op(examples=_block_examples, tolerances=_TOLERANCES)
def fp8_block_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    weight_scale: torch.Tensor,
    bias: torch.Tensor | None,
    workspace: Workspace | None = None,
) -> torch.Tensor:
    """x W^T + bias, x quantised per 128 numbers of a row.

    x [rows, size], weight e4m3 [out, size], weight_scale [ceil(out / 128), ceil(size / 128)] float32, bias [out] or None.
    [rows, out] in x's dtype.
    """
    values, scale = _quantise(x, BLOCK)
    wide = values.float() * scale.repeat_interleave(BLOCK, 1)[:, : x.shape[1]]
    result = wide @ dequantise_blocks(weight, weight_scale).T
    return (result if bias is None else result + bias.float()).to(x.dtype)


def _gated_examples(make: ExampleMaker) -> Iterator[dict[str, Any]]:
    for blocks in (False, True):
        for example in _with_workspace(make, blocks):
            yield {**example, "bias": None}
            yield {**example, "bias": None, "workspace": None}


@op(examples=_gated_examples, tolerances=_TOLERANCES)
def fp8_linear_silu_mul(
    x: torch.Tensor,
    weight: torch.Tensor,
    weight_scale: torch.Tensor,
    bias: torch.Tensor | None,
    workspace: Workspace | None = None,
) -> torch.Tensor:
    """silu(gate) * up, where gate and up are the halves of `fp8_linear`'s product, or of `fp8_block_linear`'s."""
    product = fp8_linear.definition if weight_scale.ndim == 1 else fp8_block_linear.definition
    gate, up = product(x, weight, weight_scale, bias).chunk(2, dim=-1)
    return torch.nn.functional.silu(gate) * up


@fp8_linear_silu_mul.kernel(TWO_OPS, when=lambda x, *_, **__: x.is_cuda, graph_safe=True)
def fp8_linear_silu_mul_in_two(
    x: torch.Tensor,
    weight: torch.Tensor,
    weight_scale: torch.Tensor,
    bias: torch.Tensor | None,
    workspace: Workspace | None = None,
) -> torch.Tensor:
    product = fp8_linear if weight_scale.ndim == 1 else fp8_block_linear
    return silu_mul(product(x, weight, weight_scale, bias, workspace))


def dequantise_blocks(weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """weight e4m3 [out, size] with scale [ceil(out / 128), ceil(size / 128)], as float32 [out, size]."""
    spread = scale.float().repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)
    return weight.float() * spread[: weight.shape[0], : weight.shape[1]]


def quantise_channels(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A weight [out, size] as e4m3 [out, size] and scales [out], float32."""
    values, scale = quantise_rows(weight, weight.shape[1])
    return values, scale.flatten()


def quantise_blocks(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A weight [out, size] as e4m3 [out, size] and scales [ceil(out / 128), ceil(size / 128)], float32."""
    out, size = weight.shape
    padded = torch.nn.functional.pad(weight.float(), (0, -size % BLOCK, 0, -out % BLOCK))
    blocks = padded.unflatten(0, (-1, BLOCK)).unflatten(2, (-1, BLOCK))  # [blocks, 128, blocks, 128]
    scale = blocks.abs().amax((1, 3)).clamp(min=SMALLEST_MAXIMUM) * INVERSE
    values = (blocks / scale[:, None, :, None]).flatten(2).flatten(0, 1)[:out, :size]
    return values.to(FP8).contiguous(), scale
