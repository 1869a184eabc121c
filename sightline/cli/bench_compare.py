"""`sightline bench compare`: results of several runs in one table, with ratios, and as plots."""

import argparse
from pathlib import Path
from typing import Any


def add_command(actions: Any) -> None:
    parser = actions.add_parser("compare", help="results of several runs in one table, with ratios, and as plots")
    parser.add_argument(
        "results",
        type=Path,
        nargs="+",
        metavar="FILE",
        help="written by --output of serve, multiturn or probe, by `vllm bench serve` or by sglang.bench_serving",
    )
    parser.add_argument("--plots", type=Path, metavar="DIR", help="draw what there is, as PNG and SVG (needs matplotlib)")
    parser.set_defaults(run=run, subparser=parser)


def run(arguments: argparse.Namespace) -> None:
    from sightline.bench.load.compare import read_runs, tables

    runs = read_runs(arguments.results)
    print("\n\n".join(tables(runs)))
    if arguments.plots is not None:
        from sightline.bench.load.plots import draw_plots

        print()
        for file in draw_plots(runs, arguments.plots):
            print(file)
