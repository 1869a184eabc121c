"""`python -m benchmarks.pace`: what `--target-itl-ms` does to an open load, by the real scheduler and a modelled device."""

import argparse
import sys

from benchmarks.benchmark import Benchmark, Results
from sightline.cli.flags import Parser
from sightline.errors import ConfigError


def add_options(parser: Parser) -> None:
    parser.add_argument("--rates", type=float, nargs="+", default=[6.0, 12.0, 18.0], metavar="R", help="requests a second")
    parser.add_argument("--requests", type=int, default=600, metavar="N", help="requests at each rate (default: 600)")
    parser.add_argument("--prompt", type=int, nargs=2, default=[50, 2600], metavar="N", help="tokens of a prompt, from and to")
    parser.add_argument("--answer", type=int, nargs=2, default=[32, 192], metavar="N", help="tokens of an answer, from and to")
    parser.add_argument("--step-ms", type=float, default=4.3, help="a step of decoding (default: 4.3)")
    parser.add_argument("--sequence-us", type=float, default=46.0, help="what each sequence adds (default: 46)")
    parser.add_argument("--token-us", type=float, default=23.0, help="what each token of a prompt adds (default: 23)")
    parser.add_argument(
        "--targets", type=float, nargs="*", default=[35.0, 50.0], metavar="MS", help="beside none and the default"
    )


def run(arguments: argparse.Namespace) -> Results:
    from benchmarks.measure.paced_load import DeviceModel, Load, simulate
    from sightline.schedule.pace import Pace

    if arguments.requests < 1 or min(arguments.rates) <= 0:
        raise ConfigError(f"--requests is {arguments.requests} and --rates {arguments.rates}, but both must be above 0.")
    device = DeviceModel(arguments.step_ms / 1e3, arguments.sequence_us / 1e6, arguments.token_us / 1e6)
    rows = []
    print("requests/s   target      TTFT p50      p99    ITL p50      p99      max   steps beyond the target")
    for rate in arguments.rates:
        load = Load(rate, arguments.requests, tuple(arguments.prompt), tuple(arguments.answer))
        paces = {"none": None, "default": Pace()} | {f"{target:g}": Pace(target / 1e3) for target in arguments.targets}
        for name, pace in paces.items():
            times = simulate(load, device, pace)
            row = {
                "rate": rate,
                "target_itl_ms": name,
                "ttft_p50_ms": 1e3 * times.percentile("first_s", 50),
                "ttft_p99_ms": 1e3 * times.percentile("first_s", 99),
                "itl_p50_ms": 1e3 * times.percentile("gaps_s", 50),
                "itl_p99_ms": 1e3 * times.percentile("gaps_s", 99),
                "itl_max_ms": 1e3 * float(times.gaps_s.max(initial=0.0)),
                "seconds": times.seconds,
                "exceeded": times.exceeded,
            }
            rows.append(row)
            figures = "".join(
                f"{row[key]:10.1f}" for key in ("ttft_p50_ms", "ttft_p99_ms", "itl_p50_ms", "itl_p99_ms", "itl_max_ms")
            )
            print(f"{rate:10g}   {name:>7s}   {figures}   {times.exceeded:10d}")
    return Results(
        "modelled", {"model": vars(device) | {"prompt": arguments.prompt, "answer": arguments.answer}, "loads": rows}
    )


BENCHMARK = Benchmark(
    "pace", "times between tokens and to first tokens with --target-itl-ms; a modelled device", add_options, run
)

if __name__ == "__main__":
    sys.exit(BENCHMARK.main())
