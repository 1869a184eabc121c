"""Large products through quack, a package that comes with flash-attn-4, which needs it.

Its kernels finish one tile (bias, GELU, SiLU, what is added) while they multiply the next, where cuBLAS's wait. That counts
where the inner size is short, as in a tower's blocks, or where finishing saves a pass over memory. Times are microseconds on an
H200, timed by hand (benchmarks/results/h200/products.json).
"""

from typing import Any

import torch

from sightline.ops.external.compiler import without_the_compiler

with without_the_compiler():
    import quack.epilogue.frontend
    import quack.epilogue.library  # its epilogues are imported with a product otherwise, and can fail to
    import quack.gemm
    from cutlass.cute.math import cos, fma, sin
    from quack.epilogue.frontend import gemm_epilogue, pack, unpack
    from quack.epilogue.ops import ColVecLoad, RowVecLoad
    from quack.gemm import gemm
    from quack.gemm_config import GemmConfig
    from quack.gemm_interface import gemm_act

from sightline.ops.linear import CUBLAS, CUBLASLT, TWO_OPS, add_linear, linear_gelu_tanh, linear_silu_mul
from sightline.ops.rotary import PatchRotary, rotated_projection

# A tile is taken by one of two groups of warps in turn, and two multiprocessors with neighbouring rows share the weights.
_TILE = GemmConfig(tile_m=128, tile_n=160, pingpong=True, cluster_m=2, cluster_n=1, is_dynamic_persistent=False)
_MOST_SIZES = 1024
_sizes: set[int] = set()  # numbers of rows that were multiplied since plans were last forgotten
_SHORT = 2048  # inner sizes up to here; longer ones are as fast through cuBLAS if nothing but a bias follows


def _are_matrices(*tensors: torch.Tensor) -> bool:
    """Rows one after another, each from an address that 16 bytes divide."""
    plain = all(x.is_cuda and x.dtype == torch.bfloat16 and x.ndim == 2 and x.is_contiguous() for x in tensors)
    return plain and all(x.shape[1] % 8 == 0 for x in tensors)


def _note_size(rows: int) -> None:
    """quack keeps a plan for every size it has seen, some kilobytes for ever, and batches of images come in thousands of sizes.

    It has no way to forget them; where its next version keeps them is not known, and then they stay. A plan is made again in a
    fraction of a millisecond, and captured graphs need none.
    """
    _sizes.add(rows)
    if len(_sizes) > _MOST_SIZES:
        _sizes.clear()
        _sizes.add(rows)
        getattr(quack.gemm, "_gemm_plan_cache", {}).clear()
        for epilogue in getattr(quack.epilogue.frontend, "TORCH_OP_EPI_MODS", {}).values():
            for name in ("_plan_cache", "_call_cache"):
                getattr(epilogue, name, {}).clear()


def _gemm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, activation: str | None) -> torch.Tensor:
    _note_size(len(x))
    joined = ("B",) if activation == "swiglu" else None  # gate and up are the halves of the weight, not every other row
    found = gemm_act(
        x,
        weight.T,
        bias=bias,
        activation=activation,
        store_preact=False,
        tuned=False,
        config=_TILE,
        concat_layout=joined,
    )
    out: torch.Tensor = found[1]
    return out


_FULL_TURN = 6.283185307179586
_LAST_BIT = 12582912.0  # added to a number and taken away again, leaves the nearest whole number


# What follows is compiled, and called for two neighbouring columns of a row at a time.
_OPERANDS = {"row": ColVecLoad("row"), "column": ColVecLoad("column"), "turns": RowVecLoad("turns")}


def _turned(pair: Any, row: Any, column: Any, turns: Any) -> Any:
    """A pair turned by its patch's row or column; angles in turns, of which whole ones are taken away, in float32."""
    x, y = unpack(pair)
    by_row, by_column = unpack(turns)
    angle = fma(row, by_row, column * by_column)  # one of the two is zero
    angle = (angle - (fma(angle, 1.0, _LAST_BIT) - _LAST_BIT)) * _FULL_TURN
    c, s = cos(angle, fastmath=True), sin(angle, fastmath=True)
    return pack(x * c - y * s, y * c + x * s)


@gemm_epilogue(ops=_OPERANDS, mode="acc_pair")
def _rotated(acc: Any, row: Any, column: Any, turns: Any) -> Any:
    return {"D": _turned(acc, row, column, turns)}


@gemm_epilogue(ops={**_OPERANDS, "bias": RowVecLoad("bias")}, mode="acc_pair")  # else guessed, and not if rows are columns
def _rotated_with_bias(acc: Any, row: Any, column: Any, turns: Any, bias: Any) -> Any:
    return {"D": _turned(acc + bias, row, column, turns)}


def _is_for_rotating(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, row_col: torch.Tensor, rotary: PatchRotary, heads: int
) -> bool:
    fits = _are_matrices(x, weight) and len(x) > 0 and len(x) % 4 == 0 and x.shape[1] <= _SHORT
    return fits and rotary.turns is not None and row_col.dtype == torch.int32 and row_col.stride(0) == 1


@rotated_projection.kernel("quack", when=_is_for_rotating, graph_safe=True, before=TWO_OPS)
def rotated_projection_quack(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, row_col: torch.Tensor, rotary: PatchRotary, heads: int
) -> torch.Tensor:
    """Here and in two ops, 1,152 to 3,840: 20.5 and 25.5 for 1,296 rows, 26 and 36 for 2,048, 48 and 56 for 3,520, 100 and 122
    for 8,160, 174 and 213 for 14,400, 1,265 and 1,500 for 96,000. Fewer rows come here, too: two ops round once more, and an
    image's rows should not depend on how many images are beside it."""
    _note_size(len(x))
    out: torch.Tensor = x.new_empty(len(x), len(weight))
    positions = row_col.T
    vectors = {"row": positions[:1], "column": positions[1:], "turns": rotary.turns}
    epilogue = _rotated
    if bias is not None:
        epilogue, vectors["bias"] = _rotated_with_bias, bias[None]
    epilogue.gemm(
        x,
        weight,
        out,
        epi_args=vectors,
        tile_M=_TILE.tile_m,
        tile_N=_TILE.tile_n,
        cluster_M=1 if len(x) <= 2560 else 2,  # few tiles do not come in pairs
        cluster_N=1,
        pingpong=True,
    )
    return out.view(len(x), 3, heads, -1)


def _is_for_gelu(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> bool:
    return _are_matrices(x, weight) and bias is not None and len(x) >= 2048 and x.shape[1] <= _SHORT


@linear_gelu_tanh.kernel("quack", when=_is_for_gelu, graph_safe=True, before=CUBLASLT)
def linear_gelu_tanh_quack(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Here and through cuBLASLt, 1,152 to 4,304: 28 and 28 for 1,296 rows, 33 and 36 for 2,048, 49 and 58 for 3,520, 111 and
    131 for 8,160, 192 and 233 for 14,400, 1,332 and 1,589 for 96,000."""
    return _gemm(x, weight, bias, "gelu_tanh_approx")


def _is_for_silu_mul(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> bool:
    return _are_matrices(x, weight) and bias is None and len(x) >= 1536 and len(weight) % 16 == 0


@linear_silu_mul.kernel("quack", when=_is_for_silu_mul, graph_safe=True, before=TWO_OPS)
def linear_silu_mul_quack(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Here and in two ops, 4,096 to 12,288: 389 and 424 for 1,536 rows, 512 and 548 for 2,048, 981 and 981 for 3,649, 2,188
    and 2,353 for 8,192; but 349 and 314 for 1,152."""
    return _gemm(x, weight, bias, "swiglu")


def _is_for_adding(residual: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> bool:
    return _are_matrices(residual, x, weight) and bias is None and len(x) > 8192 and x.shape[1] <= _SHORT


@add_linear.kernel("quack", when=_is_for_adding, graph_safe=True, before=CUBLAS)
def add_linear_quack(residual: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Here and through cuBLAS, 1,280 to 1,152: 65 and 72 for 14,400 rows, 381 and 431 for 96,000; but 35 and 36 for 8,160,
    24 and 18 for 3,520. These tiles are wider: they divide 1,152."""
    _note_size(len(x))
    gemm(x, weight, residual, residual, None, tile_M=128, tile_N=192, cluster_M=2, cluster_N=1, pingpong=True)
    return residual
