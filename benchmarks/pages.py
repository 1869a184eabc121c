"""`python -m benchmarks.pages`: prefill and decode steps by the size of a page of keys and values."""

import argparse
import sys

from benchmarks.benchmark import Benchmark, Results
from sightline.cli.flags import Parser, add_flags, from_flags
from sightline.config import Config, ModelConfig


def add_options(parser: Parser) -> None:
    parser.add_argument(
        "--sizes", type=int, nargs="+", default=[16, 64, 128], metavar="N", help="page sizes (default: 16 64 128)"
    )
    add_flags(parser, ModelConfig)


def run(arguments: argparse.Namespace) -> Results:
    from benchmarks.measure.device_name import device_name
    from benchmarks.measure.page_size import as_json, measure_page_sizes
    from sightline.llm import LLM

    config = Config(model=from_flags(ModelConfig, arguments))
    with LLM(config.model.model, config) as llm:
        results = measure_page_sizes(llm, arguments.sizes)
        print("page size   prefill step, ms   decode step, ms")
        for result in results:
            print(f"{result.page_size:9d}   {result.prefill_ms:16.2f}   {result.decode_ms:15.2f}")
        return Results(device_name(llm.device), as_json(results, llm))


BENCHMARK = Benchmark("pages", "time of prefill and decode steps by page size", add_options, run)

if __name__ == "__main__":
    sys.exit(BENCHMARK.main())
