"""How small-M GEMMs are cut into programs: a rule from shape and chip, and what was measured to be better at some shapes.

Reading the weight is all that takes time, so the chip must be busy to the end. A multiprocessor holds as many programs as its
shared memory has room for their stages; where all programs fit at once (one wave) none waits, and where they do not the last
wave should be nearly full. Narrow weights have few tiles: programs share the sums of one (`split`) until the chip is full.

Where the rule comes from: 45 shapes of ten models, 20 tilings each, on an H200 (benchmarks/results/h200/small_m.json). There
its choice takes 0.3 to 3 % longer than the best of all, and the library 2 to 11 %. `data/tilings/h200.json` has the shapes at
which something else is better by more than 2 %.
"""

import functools
import json
from dataclasses import dataclass
from importlib import resources

from sightline.ops.linear import COUNTERS, PARTS

ROW_BUCKETS = (16, 32, 64)


@dataclass(frozen=True)
class Tiling:
    columns: int  # of the result, per program
    inner: int  # numbers of a row that are multiplied at a time
    split: int  # programs that share the sums of a tile
    warps: int
    stages: int  # loads under way, plus one
    weight_left: bool = False  # the weight is the left operand of the product, for matrix units that want 64 rows there


@dataclass(frozen=True)
class Chip:
    name: str
    multiprocessors: int
    shared_bytes: int  # that the programs of one multiprocessor have together

    def programs_at_once(self, tiling: Tiling, rows: int, gated: bool, itemsize: int = 2) -> int:
        """Of row bucket `rows`: as many as shared memory has room for."""
        stage = itemsize * tiling.inner * (tiling.columns * (2 if gated else 1) + rows)
        return self.multiprocessors * max(1, self.shared_bytes // (tiling.stages * stage))


HOPPER_SHARED_BYTES = 227 * 1024
H200 = Chip("NVIDIA H200", 132, HOPPER_SHARED_BYTES)
_INNER = 128  # numbers that rows must be a multiple of: other sizes, which need masks, are slow
_WIDE = 32768  # columns of a result: an output head
_DEEP = 8192  # numbers of a row: sums worth sharing among more programs
_LEAST_STEPS = 6  # of a program, so that its loads overlap
_LEAST_FULL = 0.72  # of the waves' room; below, the library is as fast
_MOST_SPLIT = 8


def row_bucket(rows: int) -> int:
    """Rows of a tile: what a matrix unit takes at least, or the next power of two."""
    return max(16, 1 << (rows - 1).bit_length())


def fits_workspace(rows: int, width: int, tiling: Tiling) -> bool:
    """Whether parts of sums have room; always so where nothing is shared."""
    return tiling.split == 1 or (tiling.split * rows * width <= PARTS and -(-width // tiling.columns) <= COUNTERS)


@functools.cache
def linear_tiling(rows: int, width: int, size: int, itemsize: int = 2, inner: int = 128, chip: Chip = H200) -> Tiling | None:
    """For a weight [width, size] and up to 64 rows; None where the library is to be used.

    Programs take `inner` numbers of a row at a time, or half as many if that does not divide a row.
    """
    bucket = row_bucket(rows)
    found, tiling = _measured(chip.name, False, bucket, width, size) if itemsize == 2 else (False, None)
    if not found:
        tiling = _linear_rule(bucket, width, size, chip, itemsize, inner)
    return tiling if tiling is not None and fits_workspace(bucket, width, tiling) else None


@functools.cache
def gated_tiling(rows: int, width: int, size: int, itemsize: int = 2, inner: int = 128, chip: Chip = H200) -> Tiling | None:
    """For gate and up, a weight [2 * width, size]."""
    bucket = row_bucket(rows)
    found, tiling = _measured(chip.name, True, bucket, width, size) if itemsize == 2 else (False, None)
    return tiling if found else _gated_rule(bucket, width, size, chip, itemsize, inner)


def _linear_rule(bucket: int, width: int, size: int, chip: Chip, itemsize: int = 2, inner: int = 128) -> Tiling | None:
    inner = _divisor(size, inner)
    if not inner:
        return None
    if bucket == 64 and itemsize == 2:
        return Tiling(128, inner, split=1, warps=8, stages=4) if width >= _WIDE else None
    tiles, steps = -(-width // 64), size // inner
    for stages in (6, 4, 3):
        tiling = Tiling(64, inner, split=1, warps=4, stages=stages, weight_left=True)
        room = chip.programs_at_once(tiling, bucket, False, itemsize)
        if tiles <= room:
            break
    else:
        return Tiling(64, inner, split=1, warps=4, stages=4 if bucket == 16 else 3, weight_left=True)
    if stages < 6:
        return tiling
    if steps < _LEAST_STEPS:
        return None
    if bucket > 16 and size < _DEEP:
        room = room * 3 // 4  # adding the parts of more rows up takes longer than is gained
    split = max(1, min(room // tiles, steps // _LEAST_STEPS, _MOST_SPLIT))
    return Tiling(64, inner, split, warps=4, stages=6, weight_left=True)


def _gated_rule(bucket: int, width: int, size: int, chip: Chip, itemsize: int = 2, inner: int = 128) -> Tiling | None:
    inner = _divisor(size, inner)
    if not inner:
        return None
    half = inner if inner * itemsize <= 128 else inner // 2  # bytes of a row
    if bucket == 16:
        candidates = [Tiling(32, inner, 1, warps=4, stages=3), Tiling(64, inner, 1, warps=4, stages=3, weight_left=True)]
    else:
        candidates = [
            Tiling(64, half, 1, warps=4, stages=6, weight_left=True),
            Tiling(64, half, 1, warps=4, stages=4, weight_left=True),
        ]
        if bucket == 32:
            candidates.append(Tiling(128, inner, 1, warps=8, stages=3, weight_left=True))
    for tiling in candidates:
        if -(-width // tiling.columns) <= chip.programs_at_once(tiling, bucket, True, itemsize):
            return tiling
    best = max(candidates, key=lambda tiling: _fullness(tiling, bucket, width, chip, itemsize))
    return best if _fullness(best, bucket, width, chip, itemsize) >= _LEAST_FULL or bucket == 16 or itemsize == 1 else None


def _divisor(size: int, inner: int) -> int:
    """What of `inner` numbers, or half of them, divides a row; 0 if neither does or that is less than a cache line has."""
    return next((number for number in (inner, inner // 2) if number >= _INNER and not size % number), 0)


def _fullness(tiling: Tiling, bucket: int, width: int, chip: Chip, itemsize: int) -> float:
    """Programs as a share of what fits into the waves that they take."""
    programs, room = -(-width // tiling.columns), chip.programs_at_once(tiling, bucket, True, itemsize)
    return programs / (-(-programs // room) * room)


def _measured(device: str, gated: bool, bucket: int, width: int, size: int) -> tuple[bool, Tiling | None]:
    """(whether this was measured, what was best: None is the library)."""
    table = _table()
    key = (device, gated, bucket, width, size)
    return key in table, table.get(key)


@functools.cache
def _table() -> dict[tuple[str, bool, int, int, int], Tiling | None]:
    found = {}
    for file in (resources.files("sightline") / "data" / "tilings").iterdir():
        if file.name.endswith(".json"):
            data = json.loads(file.read_text(encoding="utf-8"))
            for bucket, width, size, gated, tiling in data["choices"]:
                found[data["device"], gated, bucket, width, size] = None if tiling is None else Tiling(*tiling)
    return found
