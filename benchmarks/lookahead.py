"""`python -m benchmarks.lookahead`: answers being written beside arriving images, with two settings of the engine."""

import argparse
import shlex
import sys
from typing import Any

from benchmarks.benchmark import Benchmark, Results
from sightline.cli.bench_target import add_image_flags, add_seed_flag, chosen_seed, image_kind
from sightline.cli.flags import Parser, add_config_flags, config_from_flags
from sightline.config import Config

_EXPLANATION = """\
Loads an engine with the settings of --a, then one with those of --b, each in a process of its own. Each time some answers are
being written while requests with new images arrive: how long tokens take meanwhile, and when the others have their first."""


def add_options(parser: Parser) -> None:
    parser.add_argument("--a", default="--lookahead-patches 0", metavar="FLAGS", help="(default: --lookahead-patches 0)")
    parser.add_argument("--b", default="", metavar="FLAGS", help="(default: none, the engine's own settings)")
    parser.add_argument("--decodes", type=int, default=16, metavar="N", help="answers being written (default: 16)")
    parser.add_argument("--arrivals", type=int, default=32, metavar="N", help="requests with images (default: 32)")
    parser.add_argument("--images", type=int, default=1, metavar="N", help="in each of them (default: 1)")
    parser.add_argument("--rate", type=float, default=8.0, metavar="X", help="of them per second (default: 8)")
    parser.add_argument("--context", type=int, default=512, metavar="N", help="tokens before each answer (default: 512)")
    add_image_flags(parser)
    add_seed_flag(parser)
    add_config_flags(parser, without=("seed",))
    parser.set_defaults(image_quality=90)


def run(arguments: argparse.Namespace) -> Results:
    from benchmarks.measure.lookahead import ArrivalLoad, result_fields
    from sightline.bench.load.tables import Cell, ratio, table

    load = ArrivalLoad(
        image=image_kind(arguments),
        decodes=arguments.decodes,
        arrivals=arguments.arrivals,
        images=arguments.images,
        rate=arguments.rate,
        context=arguments.context,
        seed=chosen_seed(arguments),
    )
    settings = {name: _settings(arguments, getattr(arguments, name)) for name in ("a", "b")}
    found = {name: _measure(config, load) for name, config in settings.items()}
    figures = {name: result.figures() for name, result in found.items()}
    rows: list[list[Cell]] = [
        [figure, value, figures["b"][figure], ratio(figures["b"][figure], value)] for figure, value in figures["a"].items()
    ]
    print(f"a: {arguments.a or 'as it comes'}\nb: {arguments.b or 'as it comes'}\n")
    print(table(["milliseconds", "a", "b", "b / a"], rows))
    about = {"flags_a": arguments.a, "flags_b": arguments.b, "seed": load.seed}
    fields = {**about, **{name: dict(result_fields(result)) for name, result in found.items()}}
    flat = {f"lookahead_{name}.{figure}": value for name in figures for figure, value in figures[name].items()}
    return Results(found["b"].device, fields, flat)


def _settings(arguments: argparse.Namespace, flags: str) -> Config:
    """What the command line gives to both, and over it what it gives to one."""
    parser = Parser(prog="python -m benchmarks.lookahead --a/--b")
    add_config_flags(parser, without=("seed",))
    own = parser.parse(shlex.split(flags))
    both = {name: value for name, value in vars(arguments).items() if name != "seed"}
    return config_from_flags(argparse.Namespace(**{**both, **vars(own)}))


def _measure(config: Config, load: Any) -> Any:
    """In a process of its own: what a device was given comes back only with the end of its process."""
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor

    from benchmarks.measure.lookahead import measure_arrivals

    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(measure_arrivals, config, load).result()


BENCHMARK = Benchmark(
    "lookahead", "tokens of running answers and TTFT of arriving images, with two settings", add_options, run, _EXPLANATION
)

if __name__ == "__main__":
    sys.exit(BENCHMARK.main())
