"""`python -m benchmarks.ray_data`: a table through Ray Data against the same rows through `sightline batch`; no weights."""

import argparse
import statistics
import sys
from dataclasses import asdict

from benchmarks.benchmark import Benchmark, Results
from sightline.cli.flags import Parser
from sightline.errors import ConfigError

TARGET = 0.08  # seconds more than the batch's, as a share of them


def add_options(parser: Parser) -> None:
    parser.add_argument("--rows", type=int, default=2000, metavar="N", help="with one image each (default: 2000)")
    parser.add_argument("--image-kb", type=int, default=100, metavar="N", help="size of an image (default: 100)")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="of which the medians count (default: 5)")


def run(arguments: argparse.Namespace) -> Results:
    for name in ("rows", "image_kb", "rounds"):
        if getattr(arguments, name) < 1:
            raise ConfigError(f"--{name.replace('_', '-')} is {getattr(arguments, name)}, but must be at least 1.")
    try:
        import ray
    except ModuleNotFoundError:
        raise ConfigError("Ray is not installed; it comes with the extra: pip install 'sightline-vlm[ray]'.") from None
    from benchmarks.measure.ray_data import ENGINES, compare

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="warning")
    ray.data.DataContext.get_current().enable_progress_bars = False
    print(f"{arguments.rows} rows; seconds from the first row to the last answer, and with start and end")
    print("  Ray Data, all     batch, all    overhead")
    rounds = []
    for each in compare(arguments.rows, 1000 * arguments.image_kb, arguments.rounds):
        rounds.append(each)
        print(
            f"{each.ray_s:10.2f}{each.ray_wall_s:6.1f}{each.batch_s:9.2f}{each.batch_wall_s:6.1f}{each.overhead:12.1%}",
            flush=True,
        )
    ray.shutdown()
    overhead = statistics.median(each.overhead for each in rounds)
    print(f"median overhead {overhead:.1%}; the target is at most {TARGET:.0%}")
    fields = {
        "rows": arguments.rows,
        "image_bytes": 1000 * arguments.image_kb,
        "engines": ENGINES,
        "rounds": [asdict(each) | {"overhead": each.overhead} for each in rounds],
        "median_overhead": overhead,
        "target_overhead": TARGET,
    }
    return Results("cpu", fields, code=0 if overhead <= TARGET else 1)


BENCHMARK = Benchmark(
    "ray_data", "a table through Ray Data against sightline batch; with the extra ray, no weights", add_options, run
)

if __name__ == "__main__":
    sys.exit(BENCHMARK.main())
