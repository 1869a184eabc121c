"""`python -m benchmarks.targets`: every figure that a running server is held to, one after another, beside its target."""

import argparse
import contextlib
import io
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.benchmark import Benchmark
from sightline.cli.bench_target import add_seed_flag, add_server_flags, chosen_seed, server_words
from sightline.cli.flags import Parser
from sightline.cli.kept_figures import keep
from sightline.errors import ConfigError, UserError


def add_options(parser: Parser) -> None:
    parser.add_argument("--only", metavar="KEY,...", help="take these jobs only (default: all)")
    parser.add_argument("--name", default="", metavar="TEXT", help="of the model, for keys: ttft_ms.TEXT.560 (default: none)")
    parser.add_argument("--list", action="store_true", help="measure nothing: print commands, and what --summary has")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="PNG to draw, all figures as shares of their targets")
    add_server_flags(parser)
    add_seed_flag(parser)


def run(arguments: argparse.Namespace) -> int:
    from benchmarks.measure.target_jobs import JOBS
    from benchmarks.measure.target_table import figure_table
    from sightline.bench.summary import values_of

    keys = arguments.only.split(",") if arguments.only is not None else list(JOBS)
    for key in keys:
        if key not in JOBS:
            raise ConfigError(f"--only names {key!r}; the figures of a server are {', '.join(JOBS)}.")
    if arguments.list:
        for key in keys:
            print(f"{key:22s} sightline bench {JOBS[key]}")
        known = values_of(arguments.summary) if arguments.summary is not None else {}
        print("\n" + figure_table(known))
        _draw(arguments, known)
        return 0
    found, failures = _measure(arguments, keys)
    shown = {**(values_of(arguments.summary) if arguments.summary is not None else {}), **found}
    print("\n" + figure_table(shown, None if arguments.summary is not None else list(found)))
    _draw(arguments, shown)
    for key, failure in failures.items():
        print(f"{key} was not taken: {failure}")
    return 1 if failures else 0


def _draw(arguments: argparse.Namespace, values: dict[str, float]) -> None:
    from benchmarks.measure.target_plot import draw_targets
    from sightline.bench.summary import devices_of

    if arguments.plot is not None:
        devices = devices_of(arguments.summary) if arguments.summary is not None else ()
        draw_targets(values, " or ".join(devices) or "device", arguments.plot)


def _measure(arguments: argparse.Namespace, keys: list[str]) -> tuple[dict[str, float], dict[str, str]]:
    """Figures, and what went wrong. Each figure is kept as soon as it is there."""
    from benchmarks.measure.target_jobs import JOBS, NoFigureError, figures_of, keys_of, named, shares_of
    from benchmarks.measure.target_table import as_fields
    from sightline.bench.summary import add_to_summary

    seed = chosen_seed(arguments)
    device = _device(arguments)
    found: dict[str, float] = {}
    plain: dict[str, float] = {}  # without the name of the model
    failures: dict[str, str] = {}
    records = {}
    for number, key in enumerate(keys):
        new: dict[str, float] = {}
        try:
            records[key] = _record(arguments, JOBS[key], seed + number)
            plain |= figures_of(key, records[key])
            given = {**figures_of(key, records[key]), **shares_of(plain)}
            new = {named(one, arguments.name): value for one, value in given.items()}
            found |= new
        except (NoFigureError, UserError) as error:
            failures[key] = str(error)
        for one in keys_of(key):
            kept = new.get(named(one, arguments.name))
            print(f"{one:24s} {kept:12,.2f}" if kept is not None else f"{one:24s} {failures[key]}", flush=True)
        if arguments.summary is not None and new:
            add_to_summary(arguments.summary, new, f"sightline bench {JOBS[key]}", device)
        if arguments.json is not None:
            about = {"benchmark": "targets", "device": device, "seed": seed}
            keep(arguments.json, {**about, "figures": as_fields(found), "failures": failures, "records": records})
    return found, failures


def _record(arguments: argparse.Namespace, job: str, seed: int) -> dict[str, Any]:
    """Runs a command as if it stood on the command line; what it kept."""
    from sightline.cli.main import make_parser

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "record.jsonl"
        words = ["bench", *job.split(), *server_words(arguments), "--seed", str(seed), "--output", str(file)]
        parsed = make_parser().parse(words)
        said = io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            parsed.run(parsed)
        return dict(json.loads(file.read_text(encoding="utf-8")))


def _device(arguments: argparse.Namespace) -> str:
    from sightline.bench.load.server_metrics import device_of
    from sightline.cli.bench_target import target_config

    return device_of(target_config(arguments))


BENCHMARK = Benchmark("targets", "the figures that a running server is held to, beside those of others", add_options, run)

if __name__ == "__main__":
    sys.exit(BENCHMARK.main())
