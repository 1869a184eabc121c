"""`python -m benchmarks.language`: text prefill and decoding in the engine's loop, beside floors; with --profile, by kernel."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.benchmark import Benchmark, Results
from benchmarks.flags import add_floor_flags, floor_rates
from sightline.cli.flags import Parser, add_config_flags, config_from_flags

if TYPE_CHECKING:
    from benchmarks.measure.language import DecodeCost, PrefillCost


def add_options(parser: Parser) -> None:
    parser.add_argument(
        "--prefill", type=int, nargs="*", default=[2048, 8192], metavar="N", help="tokens of a prompt (default: 2048 8192)"
    )
    parser.add_argument(
        "--decode", type=int, nargs="*", default=[1, 32, 128], metavar="N", help="sequences that decode (default: 1 32 128)"
    )
    parser.add_argument("--context", type=int, default=1024, metavar="N", help="tokens each has when it begins (default: 1024)")
    parser.add_argument("--repeats", type=int, default=7, metavar="N", help="prefills to take medians over (default: 7)")
    parser.add_argument("--steps", type=int, default=64, metavar="N", help="decode steps to take medians over (default: 64)")
    parser.add_argument("--name", default="", metavar="TEXT", help="of the model, for the keys of --summary: decode_ms.TEXT.1")
    parser.add_argument("--profile", action="store_true", help="print the kernels that took longest")
    parser.add_argument("--tower", action="store_true", help="with --profile, also those of the tower at 1080p")
    parser.add_argument("--profile-text", type=Path, metavar="FILE", help="where to keep the tables of --profile")
    add_floor_flags(parser)
    add_config_flags(parser)


def run(arguments: argparse.Namespace) -> Results:
    from benchmarks.measure.device_name import device_name
    from benchmarks.measure.language import LanguageBench, as_json, figures

    rates = floor_rates(arguments)
    bench = LanguageBench(config_from_flags(arguments), rates, arguments.repeats, arguments.steps)
    try:
        prefills = [bench.measure_prefill(tokens) for tokens in arguments.prefill]
        print(_prefill_table(prefills), flush=True)
        decodes = [bench.measure_decode(batch, arguments.context) for batch in arguments.decode]
        print("\n" + _decode_table(decodes), flush=True)
        if arguments.profile:
            _profile(bench, arguments)
    finally:
        bench.close()
    named = figures(prefills, decodes, arguments.name)
    return Results(device_name(bench.device), as_json(bench, prefills, decodes), named)


def _prefill_table(costs: "list[PrefillCost]") -> str:
    from sightline.bench.load.tables import Cell, ratio, table

    rows: list[list[Cell]] = [
        [f"prefill {cost.tokens}", cost.ms, cost.busy_ms, cost.floor_ms, ratio(cost.ms, cost.floor_ms)] for cost in costs
    ]
    return table(["milliseconds, medians", "to the token", "device busy", "floor", "ratio"], rows)


def _decode_table(costs: "list[DecodeCost]") -> str:
    from sightline.bench.load.tables import Cell, ratio, table

    rows: list[list[Cell]] = []
    for cost in costs:
        idle = "-" if cost.idle_share is None else f"{100 * cost.idle_share:.1f} %"
        name = f"decode {cost.batch} x {cost.context}"
        rows.append([name, cost.ms, cost.p99_ms, cost.busy_ms, idle, cost.floor_ms, ratio(cost.ms, cost.floor_ms)])
    return table(["milliseconds, medians", "step", "P99", "device busy", "idle", "floor", "ratio"], rows)


def _profile(bench: Any, arguments: argparse.Namespace) -> None:
    from benchmarks.measure.device_profile import kernel_table

    if bench.device.type != "cuda":  # there it has been done with the measuring
        for tokens in arguments.prefill:
            bench.profile_prefill(tokens)
        for batch in arguments.decode:
            bench.profile_decode(batch, arguments.context)
    if arguments.tower:
        bench.profile_tower()
    parts = [f"{name}, per run of {found.runs}\n{kernel_table(found)}" for name, found in bench.profiles.items()]
    print("\n" + "\n\n".join(parts), flush=True)
    if arguments.profile_text is not None:
        arguments.profile_text.parent.mkdir(parents=True, exist_ok=True)
        arguments.profile_text.write_text("\n\n".join(parts) + "\n", encoding="utf-8")


BENCHMARK = Benchmark("language", "text prefill and decoding in the engine's loop, beside their floors", add_options, run)

if __name__ == "__main__":
    sys.exit(BENCHMARK.main())
