"""How products of a few rows with a matrix are cut into programs, by shape: what `sightline bench few-rows` found on an H200.

Shapes that are not here, or for which the library was as fast, stay with the library.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Tiling:
    columns: int  # of the result, per program
    inner: int  # numbers of a row that are multiplied at a time
    split: int  # programs that share the sums of a tile
    warps: int
    stages: int  # loads under way, plus one
    early: bool = False  # starts while the kernel before it ends, and fetches its first weights into the chip's cache


Key = tuple[int, int, int]  # rows at most (16, 32 or 64), columns of the result, size of a row

LINEAR: dict[Key, Tiling] = {}
LINEAR_SILU_MUL: dict[Key, Tiling] = {}
