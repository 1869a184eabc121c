"""`python -m benchmarks.routing`: routing over several engines: its cost, repeats, a skewed load; no weights."""

import argparse
import sys

from benchmarks.benchmark import Benchmark, Results
from sightline.cli.flags import Parser
from sightline.errors import ConfigError


def add_options(parser: Parser) -> None:
    parser.add_argument("--engines", type=int, default=8, metavar="N", help="behind the server (default: 8)")
    parser.add_argument("--requests", type=int, default=1000, metavar="N", help="in each measurement (default: 1000)")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="of both loads, in turn (default: 5)")
    parser.add_argument("--sequences", type=int, default=16, metavar="N", help="that run at once in an engine (default: 16)")
    parser.add_argument("--step-ms", type=float, default=120.0, metavar="X", help="of an engine's step (default: 120)")
    parser.add_argument("--tokens", type=int, default=10, metavar="N", help="of each answer (default: 10)")
    parser.add_argument(
        "--share", type=float, default=0.7, metavar="X", help="of what all engines can do that requests ask for (default: 0.7)"
    )


def run(arguments: argparse.Namespace) -> Results:
    from benchmarks.measure.routing import Load, measure, report

    for name in ("engines", "requests", "rounds", "sequences", "tokens"):
        if getattr(arguments, name) < 1:
            raise ConfigError(f"--{name} is {getattr(arguments, name)}, but must be at least 1.")
    if arguments.engines < 2:
        raise ConfigError("--engines is 1, and there is nothing to route.")
    if not arguments.step_ms > 0 or not arguments.share > 0:
        raise ConfigError("--step-ms and --share must be above 0.")
    load = Load(arguments.engines, arguments.sequences, arguments.step_ms, arguments.tokens, arguments.share)
    found = measure(load, arguments.requests, arguments.rounds)
    one, several = found.alone, found.routed
    print(f"milliseconds of a request with one image, medians: {one:.2f} with one engine, {several:.2f} with {load.engines}")
    print(f"  added by routing                 {found.added_ms:8.3f} ms")
    for repeats in found.repeats:
        print(f"repeats at their owner, {repeats.clients:3d} clients {100 * repeats.at_owner:8.2f} %")
    print(f"p99 at {load.share:.0%} of capacity, ms, by round")
    print("  perfectly balanced              " + "".join(f"{one:9.0f}" for one in found.balanced))
    print("  skewed                          " + "".join(f"{one:9.0f}" for one in found.skewed))
    print(f"  ratio                            {found.skew:8.2f}   {100 * found.spilled:.0f} % of requests spilled")
    kept = report(load, found, arguments.requests, arguments.rounds)
    print("simulated: sequences   share of capacity   skewed to balanced p99   at their owner without skew")
    for row in kept["simulated"]:
        shown = "{sequences:20d}{share_of_capacity:20.0%}{skewed_to_balanced_p99:25.2f}{at_owner_without_skew:30.2%}"
        print(shown.format(**row))
    return Results("cpu", kept)


BENCHMARK = Benchmark(
    "routing", "what routing over several engines costs, where repeats go, what a skewed load does", add_options, run
)

if __name__ == "__main__":
    sys.exit(BENCHMARK.main())
