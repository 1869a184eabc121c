"""What the small-M GEMM with one matrix takes in each tiling, on a GPU.

Several matrices of its shape take turns, so that weights come from memory and not from the cache of the chip. Rows are put into
8-bit floats inside what is timed, where the weight is in them: the library must do so, too.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F

from sightline.ops.activations import silu_mul
from sightline.ops.fp8 import (
    BLOCK,
    fp8_block_linear,
    fp8_linear,
    fp8_linear_silu_mul,
    fp8_linear_silu_mul_in_two,
    quantise_blocks,
    quantise_channels,
    quantise_rows,
)
from sightline.ops.linear import SPLIT_SUMS_BYTES, linear, linear_silu_mul
from sightline.ops.triton.small_m_tilings import Tiling
from sightline.ops.tuning.small_m_search import Matrix, TilingCost
from sightline.ops.tuning.timing import measure_calls
from sightline.ops.workspace import Workspace

_CHIP_CACHE = 128e6  # bytes of matrices after which none is in the cache any more: over twice the 50 MB of an H200
_LEAST_COPIES, _MOST_COPIES = 6, 48
_LARGE = 2**29  # bytes of a matrix of which two are enough

Weight = tuple[torch.Tensor, torch.Tensor | None]  # with its scales, in 8-bit floats


class MatrixTimer:
    def __init__(self, matrix: Matrix, device: torch.device, dtype: torch.dtype, repeats: int) -> None:
        self._matrix, self._repeats, self._device = matrix, repeats, device
        self._workspace = Workspace("split sums", SPLIT_SUMS_BYTES, device)
        self._weights: list[Weight] = [self._draw(dtype)]
        nbytes = self._weights[0][0].nbytes
        copies = 2 if nbytes > _LARGE else min(_MOST_COPIES, max(_LEAST_COPIES, round(_CHIP_CACHE / nbytes)))
        self._weights += [self._draw(dtype) for _ in range(copies - 1)]
        self._dtype = dtype
        self._inputs: dict[int, list[torch.Tensor]] = {}
        self._expected: dict[int, torch.Tensor] = {}

    def _draw(self, dtype: torch.dtype) -> Weight:
        matrix = self._matrix
        weight = matrix.size**-0.5 * torch.randn(*matrix.shape, dtype=dtype, device=self._device)
        if matrix.form == "16-bit":
            return weight, None
        return (quantise_channels if matrix.form == "fp8" else quantise_blocks)(weight)

    @torch.inference_mode()
    def measure(self, rows: int, tiling: Tiling | None) -> TilingCost:
        from triton.errors import TritonError

        matrix, weights, run = self._matrix, self._weights, self._run_of(tiling)
        if rows not in self._inputs:
            shape = (rows, matrix.size)
            self._inputs[rows] = [torch.randn(*shape, dtype=self._dtype, device=self._device) for _ in weights]
            self._expected[rows] = self._in_float32(self._inputs[rows][0])
        inputs, expected = self._inputs[rows], self._expected[rows]
        try:
            error = ((run(inputs[0], weights[0]).float() - expected).norm() / expected.norm()).item()
            calls = [_bound(run, x, weight) for x, weight in zip(inputs, weights, strict=True)]
            timed = measure_calls(calls, self._repeats, self._device)
        except TritonError as failure:  # does not compile, or does not fit
            said = f"{type(failure).__name__}: {str(failure)[:200]}"
            return TilingCost(matrix, rows, tiling, None, None, None, failure=said)
        moved = weights[0][0].nbytes + inputs[0].nbytes + inputs[0].element_size() * rows * matrix.width
        rate = moved / timed.microseconds / 1e6
        return TilingCost(matrix, rows, tiling, timed.microseconds, rate, error, timed.captured)

    def _run_of(self, tiling: Tiling | None) -> Callable[[torch.Tensor, Weight], torch.Tensor]:
        if tiling is None:
            return self._library
        return lambda x, weight: self._ours(x, weight, tiling)

    def _library(self, x: torch.Tensor, scaled: Weight) -> torch.Tensor:
        """What ops run where no tiling is chosen."""
        weight, scale = scaled
        if scale is None:
            product = F.linear(x, weight)
            return silu_mul(product) if self._matrix.gated else product
        if self._matrix.gated:
            return fp8_linear_silu_mul_in_two(x, weight, scale, None, self._workspace)
        return (fp8_linear if scale.ndim == 1 else fp8_block_linear)(x, weight, scale, None, None)

    def _ours(self, x: torch.Tensor, scaled: Weight, tiling: Tiling) -> torch.Tensor:
        from sightline.ops.triton.small_m import run_linear, run_linear_silu_mul

        weight, scale = scaled
        dtype, scales = x.dtype, None
        if scale is not None:
            x, of_rows = quantise_rows(x, x.shape[1] if scale.ndim == 1 else BLOCK)
            scales = of_rows, scale
        if self._matrix.gated:
            return run_linear_silu_mul(x, weight, tiling, scales, dtype)
        return run_linear(x, weight, None, tiling, self._workspace, scales, dtype)

    def _in_float32(self, x: torch.Tensor) -> torch.Tensor:
        """The definition, of rows in the same 8-bit floats where the weight is in them."""
        weight, scale = self._weights[0]
        wide = x.float()
        if scale is None:
            return (linear_silu_mul if self._matrix.gated else linear).definition(wide, weight.float(), None)
        if self._matrix.gated:
            return fp8_linear_silu_mul.definition(wide, weight, scale, None)
        return (fp8_linear if scale.ndim == 1 else fp8_block_linear).definition(wide, weight, scale, None)


def _bound(run: Callable[[torch.Tensor, Weight], torch.Tensor], x: torch.Tensor, weight: Weight) -> Callable[[], torch.Tensor]:
    return lambda: run(x, weight)
