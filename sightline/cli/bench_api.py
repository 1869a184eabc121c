"""`sightline bench api`: what a request with images costs the API process; no weights."""

import argparse
from pathlib import Path
from typing import Any

from sightline.cli.flags import add_flags, from_flags
from sightline.cli.kept_figures import command, keep
from sightline.config import ModelConfig
from sightline.errors import ConfigError


def add_command(actions: Any) -> None:
    parser = actions.add_parser("api", help="what a request with images costs the API process, on one core; no weights")
    parser.add_argument("--images", type=int, nargs="+", default=[1, 8, 64], metavar="N", help="images (default: 1 8 64)")
    parser.add_argument("--repeats", type=int, default=20, metavar="N", help="requests to take medians over (default: 20)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to keep the figures")
    add_flags(parser, ModelConfig)
    parser.set_defaults(run=run, subparser=parser)


def run(arguments: argparse.Namespace) -> None:
    from sightline.bench.api_cost import STAGES, TARGET_MS, measure, model_files, one_core, report

    for name, value in [("--repeats", arguments.repeats), *(("--images", count) for count in arguments.images)]:
        if value < 1:
            raise ConfigError(f"{name} is {value}, but must be at least 1.")
    print(f"milliseconds of the processor per image, medians, one core; the target is {TARGET_MS:g}")
    print("images  body, MB   tokens" + "".join(f"{stage:>9s}" for stage in STAGES) + "    total   total of the request")
    costs = []
    with model_files(from_flags(ModelConfig, arguments)) as files, one_core():
        for count in sorted(set(arguments.images)):
            cost = measure(files, count, arguments.repeats)
            costs.append(cost)
            shares = "".join(f"{cost.stages[stage] / count:9.3f}" for stage in STAGES)
            print(f"{count:6d}{cost.body_mb:10.2f}{cost.prompt_tokens:9d}{shares}{cost.per_image:9.3f}{cost.total:17.2f}")
    if arguments.json is not None:
        keep(arguments.json, report(costs, command(), arguments.repeats))
