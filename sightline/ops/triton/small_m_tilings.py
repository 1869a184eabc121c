"""How small-M GEMMs with a matrix are cut into programs, by shape: what `python -m benchmarks.small_m` found on an H200.

Those with the weight on the left were timed by hand, in the same way (benchmarks/results/h200/few_rows_steps.json). Shapes that
are not here, or for which the library was as fast, stay with the library.
"""

from dataclasses import dataclass

from sightline.ops.linear import COUNTERS, PARTS


@dataclass(frozen=True)
class Tiling:
    columns: int  # of the result, per program
    inner: int  # numbers of a row that are multiplied at a time
    split: int  # programs that share the sums of a tile
    warps: int
    stages: int  # loads under way, plus one
    weight_left: bool = False  # the weight is the left operand of the product, for matrix units that want 64 rows there


def row_bucket(rows: int) -> int:
    """Rows of a tile: what a matrix unit takes at least, or the next power of two."""
    return max(16, 1 << (rows - 1).bit_length())


def fits_workspace(rows: int, width: int, tiling: Tiling) -> bool:
    """Whether parts of sums have room; always so where nothing is shared."""
    return tiling.split == 1 or (tiling.split * rows * width <= PARTS and -(-width // tiling.columns) <= COUNTERS)


Key = tuple[int, int, int]  # rows at most (16, 32 or 64), columns of the result, size of a row

LINEAR: dict[Key, Tiling] = {
    (16, 6144, 4096): Tiling(64, 128, split=1, warps=4, stages=6, weight_left=True),  # qkv
    (32, 6144, 4096): Tiling(64, 128, split=1, warps=4, stages=6, weight_left=True),  # qkv
    (16, 4096, 4096): Tiling(64, 128, split=2, warps=4, stages=4, weight_left=True),  # out
    (32, 4096, 4096): Tiling(64, 128, split=2, warps=4, stages=4, weight_left=True),  # out
    (16, 4096, 12288): Tiling(64, 128, split=2, warps=4, stages=6, weight_left=True),  # down
    (32, 4096, 12288): Tiling(64, 128, split=2, warps=4, stages=6, weight_left=True),  # down
    (64, 4096, 12288): Tiling(64, 128, split=2, warps=8, stages=4),  # down
    (16, 151936, 4096): Tiling(64, 128, split=1, warps=4, stages=4),  # head
    (32, 151936, 4096): Tiling(128, 128, split=1, warps=8, stages=4),  # head
    (64, 151936, 4096): Tiling(128, 128, split=1, warps=8, stages=4),  # head
}
LINEAR_SILU_MUL: dict[Key, Tiling] = {
    (16, 12288, 4096): Tiling(32, 128, split=1, warps=4, stages=4),  # gate_up
    (32, 12288, 4096): Tiling(128, 128, split=1, warps=8, stages=3, weight_left=True),  # gate_up
    (64, 12288, 4096): Tiling(64, 64, split=1, warps=4, stages=4, weight_left=True),  # gate_up
}
