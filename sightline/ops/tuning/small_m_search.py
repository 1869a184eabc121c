"""Which tiling of a small-M GEMM is fastest: what is tried, in which order, and what is chosen.

Every candidate is timed at the fewest rows of a bucket. The best of these, the library and what would run without a search are
timed again, at all rows of the bucket, and those times decide: the least of a hundred times is low by chance, too. What is
less exact than the library's product is not chosen.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from sightline.ops.fp8 import BLOCK
from sightline.ops.triton.small_m_tilings import H200, ITEMSIZE, Chip, Form, GemmShape, Tiling, can_run, row_bucket, rule_tiling

GAIN = 0.98  # of the time of what would run, from which another tiling is worth having
_BUSY = 96 / 132  # of the multiprocessors that must have a program
_MOST_PROGRAMS = 1100  # on 132 multiprocessors as many as fit at once and a few more: from there on no split
_SPLITS = (1, 2, 4, 6, 8)
_FINALISTS = 6
_ERROR = 1.1  # of the library's error, up to which a kernel may be chosen
_GRID = (  # columns, inner of 16-bit floats, warps, stages
    (16, 256, 4, 4), (16, 256, 4, 6), (32, 64, 4, 8), (32, 128, 4, 4), (32, 128, 4, 6), (32, 128, 4, 8), (32, 256, 4, 4),
    (32, 256, 4, 6), (64, 64, 4, 4), (64, 64, 4, 7), (64, 128, 4, 4), (64, 128, 4, 6), (64, 128, 8, 4), (64, 256, 8, 4),
    (128, 64, 4, 4), (128, 64, 4, 6), (128, 64, 8, 4), (128, 128, 8, 4), (256, 64, 8, 4),
)  # fmt: skip
_GRID_WEIGHT_LEFT = (
    (64, 64, 4, 4), (64, 64, 4, 6), (64, 128, 4, 3), (64, 128, 4, 4), (64, 128, 4, 6), (64, 256, 4, 3), (128, 64, 4, 4),
    (128, 64, 4, 6), (128, 128, 4, 3), (128, 128, 8, 3), (128, 128, 8, 4),
)  # fmt: skip


@dataclass(frozen=True)
class Matrix:
    name: str
    width: int  # columns of the result
    size: int  # numbers of a row
    gated: bool = False  # gate and up, with silu(gate) * up as the result
    form: Form = "16-bit"

    @property
    def shape(self) -> tuple[int, int]:
        return (2 * self.width if self.gated else self.width), self.size

    def at(self, bucket: int) -> GemmShape:
        return GemmShape(bucket, self.width, self.size, self.gated, self.form)


@dataclass(frozen=True)
class TilingCost:
    matrix: Matrix
    rows: int
    tiling: Tiling | None  # None: the library's product
    microseconds: float | None  # None if it failed
    terabytes_per_second: float | None
    error: float | None  # relative to the product in float32
    captured: bool = True  # in a CUDA graph
    failure: str | None = None
    decides: bool = True  # else it was only measured to find out what to measure again


@dataclass(frozen=True)
class Choice:
    """The fastest of a bucket of rows, beside what would run without a search."""

    matrix: Matrix
    bucket: int
    tiling: Tiling | None
    microseconds: dict[int, float]  # by rows
    usual: Tiling | None
    usual_microseconds: dict[int, float]  # empty if it failed

    @property
    def ratio(self) -> float:
        """Of the two times, over all rows."""
        return sum(self.microseconds.values()) / sum(self.usual_microseconds.values()) if self.usual_microseconds else 0.0

    @property
    def gains(self) -> bool:
        return self.ratio < GAIN


Measure = Callable[[int, Tiling | None], TilingCost]  # (rows, tiling)
Usual = Callable[[GemmShape], Tiling | None]  # what would run


def the_library(shape: GemmShape) -> Tiling | None:
    return None


def candidates(shape: GemmShape, chip: Chip = H200) -> list[Tiling]:
    """Tilings of the grid that fit into a multiprocessor and give the chip enough to do, with the splits that do."""
    found = []
    grid = [(*cut, False) for cut in _GRID] + [(*cut, True) for cut in _GRID_WEIGHT_LEFT]
    for columns, numbers, warps, stages, weight_left in grid:
        inner = numbers * 2 // ITEMSIZE[shape.form]  # the same bytes
        if (shape.form == "fp8 blocks" and inner != BLOCK) or (shape.rows == 64 and columns < 32):
            continue
        tiles, steps = -(-shape.width // columns), -(-shape.size // inner)
        for split in (1,) if shape.gated else _SPLITS:
            programs = tiles * split
            enough = programs >= _BUSY * chip.multiprocessors and steps // split >= stages
            not_too_many = split == 1 or programs <= _MOST_PROGRAMS / 132 * chip.multiprocessors
            tiling = Tiling(columns, inner, split, warps, stages, weight_left)
            if enough and not_too_many and can_run(shape, tiling, chip):
                found.append(tiling)
    return found


def neighbours(shape: GemmShape, tiling: Tiling | None, chip: Chip = H200) -> list[Tiling]:
    """Tilings that differ from this one in one number, and can run."""
    if tiling is None:
        return []
    found = [replace(tiling, split=max(1, tiling.split + more)) for more in (-2, -1, 1, 2)]
    found += [replace(tiling, stages=max(2, tiling.stages + more)) for more in (-2, -1, 1, 2)]
    found += [replace(tiling, columns=tiling.columns // 2), replace(tiling, columns=tiling.columns * 2)]
    found += [replace(tiling, inner=tiling.inner // 2), replace(tiling, inner=tiling.inner * 2)]
    found += [replace(tiling, warps=4 if tiling.warps == 8 else 8), replace(tiling, weight_left=not tiling.weight_left)]
    return [one for one in dict.fromkeys(found) if one != tiling and can_run(shape, one, chip)]


def search(
    matrix: Matrix, rows: Sequence[int], measure: Measure, usual: Usual = the_library, chip: Chip = H200
) -> Iterator[TilingCost]:
    """All that is measured, one after another, for `choose`."""
    for bucket, group in itertools.groupby(sorted(set(rows)), key=row_bucket):
        counts, shape = list(group), matrix.at(bucket)
        start = usual(shape)
        tried = [tiling for tiling in (start, *neighbours(shape, start, chip), *candidates(shape, chip)) if tiling is not None]
        found = []
        for tiling in dict.fromkeys(tried):
            cost = replace(measure(counts[0], tiling), decides=False)
            yield cost
            if cost.microseconds is not None:
                found.append((cost.microseconds, tiling))
        best = [tiling for _, tiling in sorted(found, key=lambda pair: pair[0])[:_FINALISTS]]
        for count in counts:
            yield from (measure(count, tiling) for tiling in dict.fromkeys([None, start, *best]))


def choose(costs: Sequence[TilingCost], usual: Usual = the_library) -> list[Choice]:
    """The least time in all, over the rows of a bucket, among those that worked for all of them; of equal ones the usual."""
    by_bucket: dict[tuple[Matrix, int], list[TilingCost]] = {}
    for cost in costs:
        if cost.decides:
            by_bucket.setdefault((cost.matrix, row_bucket(cost.rows)), []).append(cost)
    choices = []
    for (matrix, bucket), group in by_bucket.items():
        start, rows = usual(matrix.at(bucket)), {cost.rows for cost in group}
        bounds = {cost.rows: cost.error for cost in group if cost.tiling is None and cost.error is not None}
        times: dict[Tiling | None, dict[int, float]] = {}
        usual_times: dict[int, float] = {}
        for cost in group:
            if cost.microseconds is None or cost.error is None:
                continue
            if cost.tiling == start:
                usual_times[cost.rows] = cost.microseconds
            if cost.error <= _ERROR * bounds.get(cost.rows, -math.inf):
                times.setdefault(cost.tiling, {})[cost.rows] = cost.microseconds
        complete = {tiling: found for tiling, found in times.items() if found.keys() == rows}
        if complete:
            best = min(complete, key=lambda one: (sum(complete[one].values()), one != start))
            usual_times = usual_times if usual_times.keys() == rows else {}
            choices.append(Choice(matrix, bucket, best, complete[best], start, usual_times))
    return choices


_ROWS_OF = {16: (1, 16), 32: (32,), 64: (64,)}  # what a bucket is measured at: a single sequence is one of its own


def tune(matrix: Matrix, bucket: int, measure: Measure, chip: Chip) -> Choice | None:
    """The best of a bucket beside what the rule says; None if nothing could be measured."""

    def by_rule(shape: GemmShape) -> Tiling | None:
        return rule_tiling(shape, chip)

    choices = choose(list(search(matrix, _ROWS_OF[bucket], measure, by_rule, chip)), by_rule)
    return choices[0] if choices else None
