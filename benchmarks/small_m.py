"""`python -m benchmarks.small_m`: how small-M GEMMs with a model's matrices are best cut into programs."""

import argparse
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

from benchmarks.benchmark import Benchmark, Results
from sightline.cli.flags import Parser, add_flags, from_flags
from sightline.config import ModelConfig
from sightline.errors import ConfigError

if TYPE_CHECKING:
    from sightline.ops.tuning.small_m_search import TilingCost

_ROWS = (1, 8, 16, 32, 64)


def add_options(parser: Parser) -> None:
    parser.add_argument(
        "--rows", type=int, nargs="+", default=list(_ROWS), metavar="N", help=f"up to 64 (default: {' '.join(map(str, _ROWS))})"
    )
    parser.add_argument("--matrices", nargs="+", metavar="NAME", help="only these of qkv, out, down, gate_up and head")
    parser.add_argument("--repeats", type=int, default=5, metavar="N", help="runs to take medians over (default: 5)")
    add_flags(parser, ModelConfig)


def run(arguments: argparse.Namespace) -> Results:
    import torch

    from benchmarks.measure.device_name import device_name
    from benchmarks.measure.small_m import data_lines, matrices_of
    from sightline.config import MediaConfig
    from sightline.models.device import choose_device, choose_dtype
    from sightline.models.files import read_model_files
    from sightline.ops.kernels import register_kernels
    from sightline.ops.linear import SMALL_M
    from sightline.ops.tuning.small_m_search import choose, search
    from sightline.ops.tuning.small_m_timer import MatrixTimer

    if arguments.repeats < 1:
        raise ConfigError(f"--repeats is {arguments.repeats}, but must be at least 1.")
    for rows in arguments.rows:
        if not 1 <= rows <= SMALL_M:
            raise ConfigError(f"--rows is {rows}, but must be from 1 to {SMALL_M}.")
    config = from_flags(ModelConfig, arguments)
    spec = read_model_files(config, MediaConfig()).spec
    known = {matrix.name: matrix for matrix in matrices_of(spec.text)}
    for name in arguments.matrices or []:
        if name not in known:
            raise ConfigError(f"--matrices names {name!r}; there are {', '.join(known)}.")
    device = choose_device(config.device)
    if device.type != "cuda":
        raise ConfigError(f"small-m times kernels of a GPU, but --device is {device.type!r} here.")
    dtype = choose_dtype(config.dtype, spec.dtype, device)
    if dtype == torch.float32:
        raise ConfigError("small-m is about 16-bit floats, but --dtype is 'float32'.")
    register_kernels()
    print(f"{'matrix':10s}{'rows':>5s}{'shape':>16s}   {'tiling':52s}{'us':>9s}{'TB/s':>8s}{'error':>10s}")
    costs: list[TilingCost] = []
    for name in arguments.matrices or known:
        timer = MatrixTimer(known[name], device, dtype, arguments.repeats)
        for cost in search(known[name], arguments.rows, timer.measure):
            costs.append(cost)
            if cost.tiling is None:
                _print(cost)
        del timer
        torch.cuda.empty_cache()
    choices = choose(costs)
    print("\nthe best; * where it is faster than the library")
    measured = {(one.matrix, one.rows, one.tiling): one for one in costs if one.decides}
    for choice in choices:
        for rows, library in choice.usual_microseconds.items():
            _print(measured[choice.matrix, rows, choice.tiling], "* " if choice.gains else "  ", library)
    failed = [cost for cost in costs if cost.microseconds is None]
    launched = [cost for cost in costs if not cost.captured]
    print(f"\n{len(costs)} timings, {len(failed)} tilings failed, {len(launched)} were not captured\n")
    print("\n".join(data_lines(choices)))
    fields = {
        "torch": torch.__version__,
        "dtype": str(dtype).removeprefix("torch."),
        "choices": [{**asdict(choice), "gains": choice.gains} for choice in choices],
        "table": data_lines(choices),
        "costs": [asdict(cost) for cost in costs],
    }
    return Results(device_name(device), fields)


def _print(cost: "TilingCost", mark: str = "  ", library: float | None = None) -> None:
    matrix, tiling = cost.matrix, cost.tiling
    shape = f"{matrix.size} to {matrix.width}"
    cut = "library"
    if tiling is not None:
        cut = f"{tiling.columns} x {tiling.inner}, {tiling.split} parts, {tiling.warps} warps, {tiling.stages} stages"
        cut += ", weight left" if tiling.weight_left else ""
    if cost.microseconds is None:
        print(f"{matrix.name:10s}{cost.rows:5d}{shape:>16s} {mark}{cut:52s} {cost.failure}", flush=True)
        return
    beside = "" if library is None else f"   library {library:.1f}"
    print(
        f"{matrix.name:10s}{cost.rows:5d}{shape:>16s} {mark}{cut:52s}{cost.microseconds:9.2f}{cost.terabytes_per_second:8.2f}"
        f"{cost.error:10.2e}{beside}",
        flush=True,
    )


BENCHMARK = Benchmark("small_m", "tilings of small-M GEMMs with a model's matrices; no weights are read", add_options, run)

if __name__ == "__main__":
    sys.exit(BENCHMARK.main())
