"""How small-M GEMMs are cut into programs: a rule from shape and chip, and what was measured to be better at some shapes.

Reading the weight is all that takes time, so the chip must be busy to the end. A multiprocessor holds as many programs as its
shared memory has room for their stages; where all programs fit at once (one wave) none waits, and where they do not the last
wave should be nearly full. Narrow weights have few tiles: programs share the sums of one (`split`) until the chip is full.

Where the rule comes from: 45 shapes of ten models, 20 tilings each, on an H200 (benchmarks/results/h200/small_m.json). There
its choice takes 0.3 to 3 % longer than the best of all, and the library 2 to 11 %. `data/tilings/h200.json` has the shapes at
which something else is better by more than 2 %; `sightline tune` measures other shapes and other chips, and a worker fixes
what counts for its GPU before anything runs (worker/tilings.py): the same choices give the same bits.
"""

import functools
import hashlib
import json
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from importlib import resources
from typing import Any, Literal, TypeAlias, get_args

import torch

from sightline.ops.fp8 import BLOCK
from sightline.ops.linear import COUNTERS, PARTS

ROW_BUCKETS = (16, 32, 64)
Form = Literal["16-bit", "fp8", "fp8 blocks"]  # of weights: 8-bit floats have a scale per channel, or per block of 128 x 128
ITEMSIZE: Mapping[Form, int] = {"16-bit": 2, "fp8": 1, "fp8 blocks": 1}
_INNER_OF: Mapping[Form, int] = {"16-bit": 128, "fp8": 256, "fp8 blocks": 128}  # what the rule takes at a time
SMALL_WEIGHT = 2**20  # numbers of a weight, up to which the chip is not filled anyway: nothing is chosen there


@dataclass(frozen=True)
class Tiling:
    columns: int  # of the result, per program
    inner: int  # numbers of a row that are multiplied at a time
    split: int  # programs that share the sums of a tile
    warps: int
    stages: int  # loads under way, plus one
    weight_left: bool = False  # the weight is the left operand of the product, for matrix units that want 64 rows there


@dataclass(frozen=True)
class GemmShape:
    """What a tiling is chosen for."""

    rows: int  # of a bucket
    width: int  # columns of the result
    size: int  # numbers of a row
    gated: bool = False  # gate and up, a weight [2 * width, size], with silu(gate) * up as the result
    form: Form = "16-bit"


Choices: TypeAlias = Mapping[GemmShape, Tiling | None]  # None: the library


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


def hopper_chip(device: torch.device) -> Chip | None:
    """The chip that the rule was made for; others stay with the library."""
    if device.type != "cuda":
        return None
    found = torch.cuda.get_device_properties(device)
    if found.major != 9:
        return None
    return Chip(found.name, found.multi_processor_count, HOPPER_SHARED_BYTES)


@functools.cache
def linear_tiling(rows: int, width: int, size: int, form: Form = "16-bit", chip: Chip = H200) -> Tiling | None:
    """For a weight [width, size] and up to 64 rows; None where the library is to be used."""
    return chosen_tiling(GemmShape(row_bucket(rows), width, size, False, form), chip)


@functools.cache
def gated_tiling(rows: int, width: int, size: int, form: Form = "16-bit", chip: Chip = H200) -> Tiling | None:
    """For gate and up, a weight [2 * width, size]."""
    return chosen_tiling(GemmShape(row_bucket(rows), width, size, True, form), chip)


def chosen_tiling(shape: GemmShape, chip: Chip) -> Tiling | None:
    choices = _fixed.get(chip.name)
    if choices is None:
        choices = shipped_choices(chip.name)
    return choices[shape] if shape in choices else rule_tiling(shape, chip)


def rule_tiling(shape: GemmShape, chip: Chip) -> Tiling | None:
    """What the rule alone says; None where the library is to be used."""
    rule = _gated_rule if shape.gated else _linear_rule
    tiling = rule(shape.rows, shape.width, shape.size, chip, ITEMSIZE[shape.form], _INNER_OF[shape.form])
    return tiling if tiling is not None and fits_workspace(shape.rows, shape.width, tiling) else None


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


# ---- What was measured


_fixed: dict[str, Choices] = {}  # by name of the GPU


def fix_choices(gpu: str, choices: Choices) -> None:
    """From now on these count on that GPU, and beside them the rule alone."""
    _fixed[gpu] = dict(choices)
    linear_tiling.cache_clear()
    gated_tiling.cache_clear()


def fixed_choices(gpu: str) -> Choices | None:
    return _fixed.get(gpu)


def shipped_choices(gpu: str) -> Choices:
    """What comes with the package."""
    return _shipped().get(gpu, {})


@functools.cache
def _shipped() -> dict[str, dict[GemmShape, Tiling | None]]:
    found: dict[str, dict[GemmShape, Tiling | None]] = {}
    for file in (resources.files("sightline") / "data" / "tilings").iterdir():
        if file.name.endswith(".json"):
            data = json.loads(file.read_text(encoding="utf-8"))
            for entry in data["choices"]:
                shape, tiling = from_entry(entry)
                found.setdefault(data["device"], {})[shape] = tiling
    return found


Entry: TypeAlias = list[Any]  # [rows, width, size, gated, tiling or null], for 8-bit floats with the form behind


def to_entry(shape: GemmShape, tiling: Tiling | None) -> Entry:
    entry = [shape.rows, shape.width, shape.size, shape.gated, None if tiling is None else list(astuple(tiling))]
    return entry if shape.form == "16-bit" else [*entry, shape.form]


def from_entry(entry: Entry) -> tuple[GemmShape, Tiling | None]:
    """Raises TypeError or ValueError where it is no entry. Whether a tiling can run, `can_run` says."""
    rows, width, size, gated, tiling, form = entry if len(entry) == 6 else [*entry, "16-bit"]
    if not (_are_counts(rows, width, size) and rows in ROW_BUCKETS and type(gated) is bool and form in get_args(Form)):
        raise ValueError(f"{entry} names no shape")
    if tiling is None:
        return GemmShape(rows, width, size, gated, form), None
    columns, inner, split, warps, stages, weight_left = tiling if len(tiling) == 6 else [*tiling, False]
    if not _are_counts(columns, inner, split, warps, stages) or type(weight_left) is not bool:
        raise ValueError(f"{entry} has no tiling")
    return GemmShape(rows, width, size, gated, form), Tiling(columns, inner, split, warps, stages, weight_left)


def _are_counts(*numbers: object) -> bool:
    return all(type(number) is int and number > 0 for number in numbers)


def digest_of(choices: Choices) -> str:
    """Names them, in logs: equal if and only if the same is chosen for the same shapes."""
    entries = sorted(json.dumps(to_entry(shape, tiling)) for shape, tiling in choices.items())
    return hashlib.sha256("\n".join(entries).encode()).hexdigest()[:12]


def can_run(shape: GemmShape, tiling: Tiling | None, chip: Chip) -> bool:
    """Whether the kernels take it. None, the library, always can."""
    if tiling is None:
        return True
    powers = all(number & (number - 1) == 0 for number in (tiling.columns, tiling.inner, tiling.warps))
    in_range = 16 <= tiling.columns <= 256 and 32 <= tiling.inner <= 512 and 2 <= tiling.warps <= 8 and 2 <= tiling.stages <= 10
    if not powers or not in_range or not 1 <= tiling.split <= (1 if shape.gated else 2 * _MOST_SPLIT):
        return False
    if tiling.weight_left and tiling.columns < 64:  # matrix units want 64 rows there
        return False
    if shape.form == "fp8 blocks" and tiling.inner != BLOCK:
        return False
    per_stage = ITEMSIZE[shape.form] * tiling.inner * (tiling.columns * (2 if shape.gated else 1) + shape.rows)
    return tiling.stages * per_stage <= chip.shared_bytes and fits_workspace(shape.rows, shape.width, tiling)
