"""Which tiling is fastest for small-M GEMMs with each matrix of a language model, beside the library's.

A time is that of one launch in a CUDA graph over several matrices of the same shape in turn, so that weights come from memory
and not from the cache of the chip. Every tiling of a grid is timed at the fewest rows of a bucket, the best ones at the
others. What is less exact than the library's product is not chosen.
"""

import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, dataclass

import torch
import torch.nn.functional as F

from benchmarks.measure.kernels import measure_calls
from sightline.ops.activations import silu_mul
from sightline.ops.linear import SPLIT_SUMS_BYTES
from sightline.ops.triton.small_m_tilings import Tiling, fits_workspace, row_bucket
from sightline.ops.workspace import Workspace
from sightline.spec import TextSpec

_COPIES = 6  # matrices that take turns
_LARGE = 2**29  # bytes of a matrix of which two are enough
_SHARED = 227 * 1024  # bytes of an H200 that a program can have
_FEWEST_PROGRAMS = 96  # for 132 multiprocessors
_MOST_PROGRAMS = 1100  # as many as fit at once and a few more: from there on no split
_SPLITS = (1, 2, 4, 6, 8)
_FINALISTS = 6
_GAIN = 0.98  # of the library's time, from which a kernel of our own is worth having
_ERROR = 1.1  # of the library's error, up to which a kernel may be chosen
_GRID = (  # columns, inner, warps, stages
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

    @property
    def shape(self) -> tuple[int, int]:
        return (2 * self.width if self.gated else self.width), self.size


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


@dataclass(frozen=True)
class Choice:
    """The fastest tiling of a bucket of rows."""

    matrix: Matrix
    bucket: int
    tiling: Tiling
    microseconds: dict[int, float]  # by rows
    library: dict[int, float]

    @property
    def gains(self) -> bool:
        return sum(self.microseconds.values()) < _GAIN * sum(self.library.values())


def matrices_of(text: TextSpec) -> list[Matrix]:
    heads = text.attention.num_heads * text.attention.head_dim
    return [
        Matrix("qkv", heads + 2 * text.attention.num_kv_heads * text.attention.head_dim, text.hidden_size),
        Matrix("out", text.hidden_size, heads),
        Matrix("down", text.hidden_size, text.gated_mlp.intermediate_size),
        Matrix("gate_up", text.gated_mlp.intermediate_size, text.hidden_size, gated=True),
        Matrix("head", text.vocab_size, text.hidden_size),
    ]


def candidates(matrix: Matrix, bucket: int) -> list[Tiling]:
    """Tilings of the grid that fit into a multiprocessor and give the chip enough to do, with the splits that do."""
    found = []
    grid = [(*cut, False) for cut in _GRID] + [(*cut, True) for cut in _GRID_WEIGHT_LEFT]
    for columns, inner, warps, stages, weight_left in grid:
        per_stage = 2 * inner * (columns * (2 if matrix.gated else 1) + bucket)
        tiles, steps = -(-matrix.width // columns), -(-matrix.size // inner)
        if stages * per_stage > _SHARED or (bucket == 64 and columns < 32):
            continue
        for split in (1,) if matrix.gated else _SPLITS:
            programs = tiles * split
            enough = programs >= _FEWEST_PROGRAMS and steps // split >= stages
            tiling = Tiling(columns, inner, split, warps, stages, weight_left)
            if enough and (split == 1 or programs <= _MOST_PROGRAMS) and fits_workspace(bucket, matrix.width, tiling):
                found.append(tiling)
    return found


@torch.inference_mode()
def sweep(matrix: Matrix, rows: Sequence[int], device: torch.device, dtype: torch.dtype, repeats: int) -> Iterator[TilingCost]:
    bench = _Bench(matrix, device, dtype, repeats)
    for bucket, group in itertools.groupby(sorted(set(rows)), key=row_bucket):
        fewest, *others = group
        yield bench.measure(fewest, None)
        found = [bench.measure(fewest, tiling) for tiling in candidates(matrix, bucket)]
        yield from found
        best = sorted((cost for cost in found if cost.microseconds is not None), key=_microseconds)[:_FINALISTS]
        tilings = [cost.tiling for cost in best if cost.tiling is not None]
        for more in others:
            yield from (bench.measure(more, tiling) for tiling in (None, *tilings))


def choose(costs: Sequence[TilingCost]) -> list[Choice]:
    """The least time in all, over the rows of a bucket, among tilings that worked for all of them."""
    choices = []
    by_bucket: dict[tuple[Matrix, int], list[TilingCost]] = {}
    for cost in costs:
        by_bucket.setdefault((cost.matrix, row_bucket(cost.rows)), []).append(cost)
    for (matrix, bucket), group in by_bucket.items():
        library = {cost.rows: cost for cost in group if cost.tiling is None}
        times: dict[Tiling, dict[int, float]] = {}
        for cost in group:
            bound = library[cost.rows].error
            if cost.tiling is None or cost.microseconds is None or cost.error is None or bound is None:
                continue
            if cost.error <= _ERROR * bound:
                times.setdefault(cost.tiling, {})[cost.rows] = cost.microseconds
        complete = {tiling: found for tiling, found in times.items() if len(found) == len(library)}
        if complete:
            tiling = min(complete, key=lambda one: sum(complete[one].values()))
            reference = {rows: _microseconds(cost) for rows, cost in library.items()}
            choices.append(Choice(matrix, bucket, tiling, complete[tiling], reference))
    return choices


def data_lines(choices: Sequence[Choice]) -> list[str]:
    """The entries for sightline/data/tilings: rows at most, columns of the result, size of a row, gated, tiling (or null)."""
    return [
        json.dumps(
            [one.bucket, one.matrix.width, one.matrix.size, one.matrix.gated, list(astuple(one.tiling)) if one.gains else None]
        )
        for one in choices
    ]


def _microseconds(cost: TilingCost) -> float:
    return float("inf") if cost.microseconds is None else cost.microseconds


class _Bench:
    def __init__(self, matrix: Matrix, device: torch.device, dtype: torch.dtype, repeats: int) -> None:
        self._matrix, self._repeats, self._device = matrix, repeats, device
        self._workspace = Workspace("split sums", SPLIT_SUMS_BYTES, device)
        copies = 2 if dtype.itemsize * matrix.shape[0] * matrix.size > _LARGE else _COPIES
        scale = matrix.size**-0.5
        self._weights = [scale * torch.randn(*matrix.shape, dtype=dtype, device=device) for _ in range(copies)]
        self._inputs: dict[int, list[torch.Tensor]] = {}
        self._expected: dict[int, torch.Tensor] = {}

    def measure(self, rows: int, tiling: Tiling | None) -> TilingCost:
        from triton.errors import TritonError

        weights, run = self._weights, self._run_of(tiling)
        if rows not in self._inputs:
            self._inputs[rows] = [weights[0].new_empty(rows, self._matrix.size).normal_() for _ in weights]
            self._expected[rows] = self._in_float32(self._inputs[rows][0])
        inputs, expected = self._inputs[rows], self._expected[rows]
        try:
            error = ((run(inputs[0], weights[0]).float() - expected).norm() / expected.norm()).item()
            calls = [_bound(run, x, weight) for x, weight in zip(inputs, weights, strict=True)]
            timed = measure_calls(calls, self._repeats, self._device)
        except TritonError as failure:  # does not compile, or does not fit
            said = f"{type(failure).__name__}: {str(failure)[:200]}"
            return TilingCost(self._matrix, rows, tiling, None, None, None, failure=said)
        moved = weights[0].nbytes + inputs[0].nbytes + inputs[0].element_size() * rows * self._matrix.width
        rate = moved / timed.microseconds / 1e6
        return TilingCost(self._matrix, rows, tiling, timed.microseconds, rate, error, timed.captured)

    def _run_of(self, tiling: Tiling | None) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
        from sightline.ops.triton.small_m import run_linear, run_linear_silu_mul

        if tiling is None:
            return (lambda x, weight: silu_mul(F.linear(x, weight))) if self._matrix.gated else F.linear
        if self._matrix.gated:
            return lambda x, weight: run_linear_silu_mul(x, weight, tiling)
        return lambda x, weight: run_linear(x, weight, None, tiling, self._workspace)

    def _in_float32(self, x: torch.Tensor) -> torch.Tensor:
        reference = F.linear(x.float(), self._weights[0].float())
        if not self._matrix.gated:
            return reference
        gate, up = reference.chunk(2, dim=-1)
        return F.silu(gate) * up


def _bound(
    run: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], x: torch.Tensor, weight: torch.Tensor
) -> Callable[[], torch.Tensor]:
    return lambda: run(x, weight)
