"""`sightline bench`: measurements, each printed as a table and kept as JSON."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from sightline.cli.flags import add_flags, from_flags
from sightline.config import Config, ModelConfig


def add_command(commands: Any) -> None:
    parser = commands.add_parser("bench", help="measure")
    actions = parser.add_subparsers(title="benchmarks", metavar="BENCHMARK", required=True, parser_class=type(parser))
    pages = actions.add_parser("pages", help="time of prefill and decode steps by page size")
    pages.add_argument(
        "--sizes", type=int, nargs="+", default=[16, 64, 128], metavar="N", help="page sizes (default: 16 64 128)"
    )
    pages.add_argument("--json", type=Path, metavar="FILE", help="where to keep the figures")
    add_flags(pages, ModelConfig)
    pages.set_defaults(run=run_pages, subparser=pages)


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


def command() -> str:
    """The command line, so that figures can be made again."""
    return " ".join(["sightline", *sys.argv[1:]])


def keep(path: Path, figures: dict[str, object]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
