"""`sightline bench`: measurements, each printed as a table and kept as JSON."""

import argparse
import json
import shlex
import sys
from pathlib import Path
from typing import Any

from sightline.cli import (
    bench_compare,
    bench_few_rows,
    bench_kernels,
    bench_language,
    bench_lookahead,
    bench_multiturn,
    bench_pixels,
    bench_probe,
    bench_serve,
    bench_soak,
    bench_stages,
    bench_start,
    bench_targets,
    bench_tower,
)
from sightline.cli.flags import add_flags, from_flags
from sightline.config import Config, ModelConfig

_MODULES = (
    bench_serve,
    bench_multiturn,
    bench_probe,
    bench_compare,
    bench_targets,
    bench_tower,
    bench_stages,
    bench_pixels,
    bench_language,
    bench_kernels,
    bench_few_rows,
    bench_start,
    bench_lookahead,
    bench_soak,
)
_PRIVATE = ("--api-key", "--admin-api-key", "--header", "--base-url", "--host")  # flags whose values are kept nowhere


def add_command(commands: Any) -> None:
    parser = commands.add_parser("bench", help="measure")
    actions = parser.add_subparsers(title="benchmarks", metavar="BENCHMARK", required=True, parser_class=type(parser))
    for module in _MODULES:
        module.add_command(actions)
    pages = actions.add_parser("pages", help="time of prefill and decode steps by page size")
    pages.add_argument(
        "--sizes", type=int, nargs="+", default=[16, 64, 128], metavar="N", help="page sizes (default: 16 64 128)"
    )
    pages.add_argument("--json", type=Path, metavar="FILE", help="where to keep the figures")
    add_flags(pages, ModelConfig)
    pages.set_defaults(run=run_pages, subparser=pages)
    schedule = actions.add_parser("schedule", help="what planning a step costs on the host, by number of sequences; no model")
    schedule.add_argument(
        "--sequences",
        type=int,
        nargs="+",
        default=[1, 16, 64, 128, 256, 512],
        metavar="N",
        help="how many run at once (default: 1 16 64 128 256 512)",
    )
    schedule.add_argument("--steps", type=int, default=300, metavar="N", help="steps to take medians over (default: 300)")
    schedule.add_argument("--json", type=Path, metavar="FILE", help="where to keep the figures")
    schedule.set_defaults(run=run_schedule, subparser=schedule)
    api = actions.add_parser("api", help="what a request with images costs the API process, on one core; no weights")
    api.add_argument("--images", type=int, nargs="+", default=[1, 8, 64], metavar="N", help="images (default: 1 8 64)")
    api.add_argument("--repeats", type=int, default=20, metavar="N", help="requests to take medians over (default: 20)")
    api.add_argument("--json", type=Path, metavar="FILE", help="where to keep the figures")
    add_flags(api, ModelConfig)
    api.set_defaults(run=run_api, subparser=api)


def run_pages(arguments: argparse.Namespace) -> None:
    from sightline.bench.page_size import as_json, measure_page_sizes
    from sightline.llm import LLM

    config = Config(model=from_flags(ModelConfig, arguments))
    with LLM(config.model.model, config) as llm:
        results = measure_page_sizes(llm, arguments.sizes)
        print("page size   prefill step, ms   decode step, ms")
        for result in results:
            print(f"{result.page_size:9d}   {result.prefill_ms:16.2f}   {result.decode_ms:15.2f}")
        if arguments.json is not None:
            keep(arguments.json, as_json(results, llm, command()))


def run_schedule(arguments: argparse.Namespace) -> None:
    from sightline.bench.schedule_cost import decode_cost, fill_cost, growth, report
    from sightline.errors import ConfigError

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
    if arguments.json is not None:
        keep(arguments.json, report(costs, command(), arguments.steps))


def run_api(arguments: argparse.Namespace) -> None:
    from sightline.bench.api_cost import STAGES, TARGET_MS, measure, model_files, one_core, report
    from sightline.errors import ConfigError

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


def command() -> str:
    """The command line, so that figures can be made again; keys, hosts and folders of this machine are left out of it."""
    words = []
    private = False
    for word in sys.argv[1:]:
        flag, equals, _ = word.partition("=")
        if word.startswith("--"):
            private = len(flag) > 3 and any(known.startswith(flag) for known in _PRIVATE)
            words.append(flag + "=..." if private and equals else _without_folders(word))
        else:
            words.append("..." if private else _without_folders(word))
    return shlex.join(["sightline", *words])


def _without_folders(word: str) -> str:
    """Paths below the current folder are told from there, others by their last part."""
    flag, equals, value = word.partition("=") if word.startswith("--") else ("", "", word)
    path = Path(value)
    if not path.is_absolute():
        return word
    here = Path.cwd()
    return flag + equals + (str(path.relative_to(here)) if path.is_relative_to(here) else path.name)


def keep(path: Path, figures: dict[str, object]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
