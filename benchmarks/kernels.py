"""`python -m benchmarks.kernels`: every op and kernel at a model's shapes and its floor; batches of images against loops."""

import argparse
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

from benchmarks.benchmark import Benchmark, Results
from benchmarks.flags import add_floor_flags, check_positive, floor_rates
from sightline.cli.flags import Parser, add_flags, from_flags
from sightline.config import ModelConfig
from sightline.errors import ConfigError

if TYPE_CHECKING:
    from benchmarks.measure.image_batches import BatchCost
    from benchmarks.measure.kernel_case import Setting
    from benchmarks.measure.kernels import KernelCost
    from benchmarks.measure.stage_floors import Rates


def add_options(parser: Parser) -> None:
    parser.add_argument("--ops", nargs="*", metavar="NAME", help="only these (default: all; without a name: none)")
    parser.add_argument(
        "--shapes", choices=("full", "small"), help="of requests as they come, or tiny (default: full on a GPU, small on a CPU)"
    )
    parser.add_argument("--no-batches", action="store_true", help="leave out batches of images against loops over images")
    parser.add_argument("--repeats", type=int, default=20, metavar="N", help="runs to take medians over (default: 20)")
    add_floor_flags(parser)
    add_flags(parser, ModelConfig)


def run(arguments: argparse.Namespace) -> Results:
    import torch

    from benchmarks.measure.device_name import device_name
    from benchmarks.measure.kernels import OUT_OF_MEMORY, all_ops

    check_positive(arguments, "repeats")
    rates = floor_rates(arguments)
    known = list(all_ops())
    ops = known if arguments.ops is None else arguments.ops
    for name in ops:
        if name not in known:
            raise ConfigError(f"--ops names {name!r}; the ops are {', '.join(known)}.")
    at = _setting(arguments)
    costs, without = _measure_ops(at, ops, rates, arguments.repeats)
    batches = [] if arguments.no_batches else _measure_batches(arguments, at)
    print(f"\n{len(without)} of {len(ops)} ops have no shapes here" + (f": {', '.join(without)}" if without else ""))
    slower = [cost for cost in batches if not cost.faster]
    if batches:
        print(f"{len(slower)} of {len(batches)} batches of images are slower than the loop over images")
    figures = {"batches_slower_than_loops": float(len(slower))} if batches else {}
    fields: dict[str, object] = {
        "torch": torch.__version__,
        "without_shapes": without,
        "ops": [{**asdict(cost), "ratio": cost.ratio} for cost in costs],
        "batches": [{**asdict(cost), "faster": cost.faster} for cost in batches],
        **figures,
    }
    failed = bool(without) or any(cost.error not in (None, OUT_OF_MEMORY) for cost in costs)
    return Results(device_name(at.device), fields, figures, int(failed))


def _setting(arguments: argparse.Namespace) -> "Setting":
    from benchmarks.measure.kernel_case import FULL, SMALL, Setting
    from sightline.config import MediaConfig
    from sightline.models.device import choose_device, choose_dtype
    from sightline.models.files import read_model_files

    chosen = from_flags(ModelConfig, arguments)
    files = read_model_files(chosen, MediaConfig())
    device = choose_device(chosen.device)
    full = arguments.shapes == "full" or (arguments.shapes is None and device.type == "cuda")
    dtype = choose_dtype(chosen.dtype, files.spec.dtype, device)
    return Setting(files.spec, files.processor.image, FULL if full else SMALL, device, dtype)


def _measure_ops(at: "Setting", ops: list[str], rates: "Rates", repeats: int) -> "tuple[list[KernelCost], list[str]]":
    from benchmarks.measure.kernels import measure_ops

    costs: list[KernelCost] = []
    without: list[str] = []
    if ops:
        print(
            f"{'op':22s}{'shape':38s}{'implementation (* used)':24s}{'us':>10s}{'TB/s':>8s}{'TFLOP/s':>9s}{'floor':>10s}"
            f"{'ratio':>12s}"
        )
    for found in measure_ops(at, ops, rates, repeats):
        if isinstance(found, str):
            without.append(found)
            print(f"{found:22s}has no shapes here", flush=True)
            continue
        costs.append(found)
        name = f"{'*' if found.used else ' '} {found.implementation}"
        numbers = _cells(found) if found.error is None else f"   {found.error}"
        note = "" if found.captured or found.microseconds is None or at.device.type == "cpu" else "  launched, not captured"
        print(f"{found.op:22s}{found.shape:38s}{name:24s}{numbers}{note}", flush=True)
    return costs, without


def _cells(cost: "KernelCost") -> str:
    rate = "-" if cost.teraflops is None else f"{cost.teraflops:.1f}"
    return (
        f"{cost.microseconds:10.1f}{cost.terabytes_per_second:8.2f}{rate:>9s}{cost.floor_microseconds:10.1f}{cost.ratio:12.2f}"
    )


def _measure_batches(arguments: argparse.Namespace, at: "Setting") -> "list[BatchCost]":
    from benchmarks.measure.image_batches import (
        COUNTS,
        SIDES,
        SMALL_COUNTS,
        SMALL_SIDES,
        batch_shapes,
        entry_tower,
        measure_batch,
    )
    from benchmarks.measure.kernel_case import FULL

    counts, sides = (COUNTS, SIDES) if at.sizes is FULL else (SMALL_COUNTS, SMALL_SIDES)
    tower = entry_tower(at.spec, at.device, at.dtype)
    print(f"\n{'part':20s}{'images':20s}{'patches':>9s}{'loop, us':>12s}{'batch, us':>12s}{'device':>10s}{'times':>8s}  faster")
    costs: list[BatchCost] = []
    for shape, grids in batch_shapes(counts, sides, at.spec.patch_tower):
        for cost in measure_batch(tower, shape, grids, arguments.repeats):
            costs.append(cost)
            times = cost.reference_us / cost.ours_us
            print(
                f"{cost.part:20s}{cost.shape:20s}{cost.patches:9d}{cost.reference_us:12.1f}{cost.ours_us:12.1f}"
                f"{cost.device_us:10.1f}{times:8.2f}  {'yes' if cost.faster else 'NO'}",
                flush=True,
            )
    return costs


BENCHMARK = Benchmark(
    "kernels", "every op and kernel at a model's shapes, beside its floor; no weights are read", add_options, run
)

if __name__ == "__main__":
    sys.exit(BENCHMARK.main())
