"""`sightline bench pages`: prefill and decode steps by the size of a page of keys and values."""

import argparse
from typing import Any

from sightline.cli.bench_flags import add_json_flag
from sightline.cli.flags import add_flags, from_flags
from sightline.cli.kept_figures import command, keep
from sightline.config import Config, ModelConfig


def add_command(actions: Any) -> None:
    parser = actions.add_parser("pages", help="time of prefill and decode steps by page size")
    parser.add_argument(
        "--sizes", type=int, nargs="+", default=[16, 64, 128], metavar="N", help="page sizes (default: 16 64 128)"
    )
    add_json_flag(parser)
    add_flags(parser, ModelConfig)
    parser.set_defaults(run=run, subparser=parser)


def run(arguments: argparse.Namespace) -> None:
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
