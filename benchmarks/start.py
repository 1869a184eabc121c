"""`python -m benchmarks.start`: from the start of the server's process to its first answer."""

import argparse
import shlex
import sys
from dataclasses import asdict

from benchmarks.benchmark import Benchmark, Results
from sightline.cli.flags import Parser
from sightline.errors import ConfigError


def add_options(parser: Parser) -> None:
    parser.add_argument("--serve", default="", metavar="FLAGS", help='of the server, e.g. "8b --load-format dummy"')
    parser.add_argument("--starts", type=int, default=2, metavar="N", help="one after another; the last counts (default: 2)")
    parser.add_argument(
        "--image-resolution", default="560x560", metavar="SIZE", help="of the picture in the first question (default: 560x560)"
    )
    parser.add_argument("--text-only", action="store_true", help="the first question has no picture")
    parser.add_argument(
        "--fresh-caches",
        action="store_true",
        help="what compilers keep lies in a new folder, so that the first start compiles all (start_first_s)",
    )
    parser.add_argument("--timeout", type=float, default=600.0, metavar="S", help="seconds for one start (default: 600)")


def run(arguments: argparse.Namespace) -> Results:
    from benchmarks.measure.start import compiler_caches, measure_start

    if arguments.starts < 1:
        raise ConfigError(f"--starts is {arguments.starts}, but must be at least 1.")
    flags = shlex.split(arguments.serve)
    resolution = None if arguments.text_only else arguments.image_resolution
    print("seconds    listening   ready   first answer   of the engine", flush=True)
    starts = []
    with compiler_caches(arguments.fresh_caches) as environment:
        for number in range(arguments.starts):
            start = measure_start(flags, resolution, arguments.timeout, environment)
            starts.append(start)
            stages = ", ".join(f"{stage} {seconds:g}" for stage, seconds in start.engine_stages_s.items())
            print(
                f"start {number + 1}{start.listening_s:13.2f}{start.ready_s:8.2f}{start.answer_s:15.2f}   {stages}", flush=True
            )
    figures = {"start_first_s": starts[0].answer_s} if arguments.fresh_caches else {}
    if not arguments.fresh_caches or len(starts) > 1:
        figures["start_s"] = starts[-1].answer_s
    fields = {"fresh_caches": arguments.fresh_caches, "starts": [asdict(start) for start in starts]}
    return Results(starts[-1].device, fields, figures)


BENCHMARK = Benchmark("start", "from the start of `sightline serve` to its first answer", add_options, run)

if __name__ == "__main__":
    sys.exit(BENCHMARK.main())
