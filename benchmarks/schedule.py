"""`python -m benchmarks.schedule`: what planning a step costs on the host; no model."""

import argparse
import sys

from benchmarks.benchmark import Benchmark, Results
from sightline.cli.flags import Parser
from sightline.errors import ConfigError


def add_options(parser: Parser) -> None:
    parser.add_argument(
        "--sequences",
        type=int,
        nargs="+",
        default=[1, 16, 64, 128, 256, 512],
        metavar="N",
        help="how many run at once (default: 1 16 64 128 256 512)",
    )
    parser.add_argument("--steps", type=int, default=300, metavar="N", help="steps to take medians over (default: 300)")


def run(arguments: argparse.Namespace) -> Results:
    from benchmarks.measure.schedule_cost import decode_cost, fill_cost, growth, report

    for name, value in [("--steps", arguments.steps), *(("--sequences", count) for count in arguments.sequences)]:
        if value < 1:
            raise ConfigError(f"{name} is {value}, but must be at least 1.")
    counts = sorted(set(arguments.sequences))
    print("microseconds per step, medians; growth: by how much each doubling of the sequences multiplies plan + complete")
    print("case     sequences       plan   complete        sum   per sequence   growth   slowest in 100   packing the batch")
    costs = []
    for measure in (decode_cost, fill_cost):
        case = [measure(count, arguments.steps) for count in counts]
        for cost, ratio in zip(case, growth(case), strict=True):
            print(
                f"{cost.case:6s}{cost.sequences:12d}{cost.plan:11.0f}{cost.complete:11.0f}{cost.schedule:11.0f}"
                f"{cost.per_sequence:15.2f}{'-' if ratio is None else f'{ratio:.2f}':>9s}{cost.slowest:17.0f}{cost.batch:20.0f}"
            )
        costs += case
    return Results("cpu", report(costs, arguments.steps))


BENCHMARK = Benchmark("schedule", "what planning a step costs on the host, by number of sequences; no model", add_options, run)

if __name__ == "__main__":
    sys.exit(BENCHMARK.main())
