"""Flags that several benchmarks share: how fast a device could be."""

import argparse
from typing import TYPE_CHECKING

from sightline.errors import ConfigError

if TYPE_CHECKING:
    from benchmarks.measure.stage_floors import Rates


def add_floor_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rate", type=float, default=790.0, metavar="X", help="TFLOP/s of bf16 for the floor (default: 790)")
    parser.add_argument("--bandwidth", type=float, default=4.3, metavar="X", help="memory, TB/s for the floor (default: 4.3)")


def floor_rates(arguments: argparse.Namespace) -> "Rates":
    from benchmarks.measure.stage_floors import Rates

    check_positive(arguments, "rate", "bandwidth")
    return Rates(operations=1e12 * arguments.rate, bandwidth=1e12 * arguments.bandwidth)


def check_positive(arguments: argparse.Namespace, *names: str) -> None:
    for name in names:
        if not getattr(arguments, name) > 0:
            raise ConfigError(f"--{name.replace('_', '-')} is {getattr(arguments, name)}, but must be above 0.")
