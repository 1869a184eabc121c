"""`python -m benchmarks.ray_serve`: what Ray Serve adds to a request, and whether images go to their owner; no weights."""

import argparse
import sys
from dataclasses import asdict

from benchmarks.benchmark import Benchmark, Results
from sightline.cli.flags import Parser
from sightline.errors import ConfigError

TARGET_MS = (2.5, 6.0)  # added to the median and to the 95th percentile


def add_options(parser: Parser) -> None:
    parser.add_argument(
        "--sizes", type=int, nargs="+", default=[1000, 1_000_000, 6_000_000], metavar="BYTES", help="of requests"
    )
    parser.add_argument("--requests", type=int, default=200, metavar="N", help="of each size to each (default: 200)")
    parser.add_argument("--chunks", type=int, default=2000, metavar="N", help="of a stream (default: 2000)")
    parser.add_argument("--port", type=int, default=18000, metavar="N", help="that HAProxy listens on (default: 18000)")


def run(arguments: argparse.Namespace) -> Results:
    from benchmarks.measure.ray_serve import Added, measure

    for name in ("requests", "chunks"):
        if getattr(arguments, name) < 2:
            raise ConfigError(f"--{name} is {getattr(arguments, name)}, but must be at least 2.")
    print("milliseconds, median and 95th percentile; two replicas behind HAProxy, one server alone")
    print("     bytes      direct              Ray Serve            added")

    def show(size: Added) -> None:
        shown = (*size.direct_ms, *size.ray_ms, *size.added_ms)
        print(f"{size.body_bytes:10d}" + "".join(f"{value:10.2f}" for value in shown), flush=True)

    found = measure(arguments.sizes, arguments.requests, arguments.chunks, arguments.port, show)
    print(f"{found.at_owner} of {found.images} images at their owner; {found.chunk_us:.0f} us more for a streamed chunk")
    reached = all(value <= most for size in found.sizes for value, most in zip(size.added_ms, TARGET_MS, strict=True))
    fields = {
        "sizes": [asdict(size) | {"added_ms": size.added_ms} for size in found.sizes],
        "requests": arguments.requests,
        "images": found.images,
        "images_at_their_owner": found.at_owner,
        "chunk_us": found.chunk_us,
        "target_added_ms": TARGET_MS,
    }
    return Results("cpu", fields, code=0 if reached and found.at_owner == found.images else 1)


BENCHMARK = Benchmark("ray_serve", "what Ray Serve adds to a request; with the extra ray, no weights", add_options, run)

if __name__ == "__main__":
    sys.exit(BENCHMARK.main())
