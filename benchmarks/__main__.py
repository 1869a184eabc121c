"""`python -m benchmarks NAME …`: the same as `python -m benchmarks.NAME …`; without a name, the list of them."""

import importlib
import sys
from collections.abc import Sequence

from benchmarks.benchmark import Benchmark

NAMES = (
    "targets",
    "tower",
    "stages",
    "pixels",
    "language",
    "kernels",
    "small_m",
    "start",
    "lookahead",
    "pages",
    "schedule",
    "pace",
    "api",
    "batch",
    "routing",
    "ray_serve",
    "ray_data",
)


def find(name: str) -> Benchmark:
    found: Benchmark = importlib.import_module(f"benchmarks.{name}").BENCHMARK
    return found


def main(words: Sequence[str] | None = None) -> int:
    words = sys.argv[1:] if words is None else words
    if not words or words[0] not in NAMES:
        for name in NAMES:
            print(f"python -m benchmarks.{name:10s} {find(name).about}")
        return 0 if not words or words[0] in ("-h", "--help") else 2
    return find(words[0]).main(words[1:])


if __name__ == "__main__":
    sys.exit(main())
