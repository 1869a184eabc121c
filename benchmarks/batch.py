"""`python -m benchmarks.batch`: `sightline batch` against the same load over HTTP by a perfect client; no weights."""

import argparse
import statistics
import sys
from dataclasses import asdict

from benchmarks.benchmark import Benchmark, Results
from sightline.cli.flags import Parser, add_flags, from_flags
from sightline.config import ModelConfig
from sightline.errors import ConfigError

TARGET = 1.05  # times the client's seconds


def add_options(parser: Parser) -> None:
    parser.add_argument("--rows", type=int, default=2000, metavar="N", help="requests with one image each (default: 2000)")
    parser.add_argument("--image-kb", type=int, default=100, metavar="N", help="size of an image (default: 100)")
    parser.add_argument("--concurrency", type=int, default=512, metavar="N", help="requests at once (default: 512)")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="of which the medians count (default: 5)")
    add_flags(parser, ModelConfig)


def run(arguments: argparse.Namespace) -> Results:
    from benchmarks.measure.api_cost import model_files
    from benchmarks.measure.batch_load import bodies, compare

    for name in ("rows", "image_kb", "concurrency", "rounds"):
        if getattr(arguments, name) < 1:
            raise ConfigError(f"--{name.replace('_', '-')} is {getattr(arguments, name)}, but must be at least 1.")
    rounds = []
    with model_files(from_flags(ModelConfig, arguments)) as files:
        requests = list(bodies(arguments.rows, 1000 * arguments.image_kb))
        print(f"{len(requests)} rows of {len(requests[0]) / 1000:.0f} kB; seconds from the first request to the last answer")
        print("   batch  client   ratio   batch with its start")
        for each in compare(files.folder, requests, arguments.concurrency, arguments.rounds):
            rounds.append(each)
            print(f"{each.batch_s:8.2f}{each.client_s:8.2f}{each.ratio:8.3f}{each.batch_wall_s:23.2f}", flush=True)
    ratio = statistics.median(each.ratio for each in rounds)
    print(f"median ratio {ratio:.3f}; the target is at most {TARGET:g}")
    fields = {
        "rows": arguments.rows,
        "body_bytes": len(requests[0]),
        "concurrency": arguments.concurrency,
        "rounds": [asdict(each) | {"ratio": each.ratio} for each in rounds],
        "median_ratio": ratio,
        "target_ratio": TARGET,
    }
    return Results("cpu", fields, code=0 if ratio <= TARGET else 1)


BENCHMARK = Benchmark(
    "batch", "a batch against the same load over HTTP by a perfect client, engines that compute nothing", add_options, run
)

if __name__ == "__main__":
    sys.exit(BENCHMARK.main())
