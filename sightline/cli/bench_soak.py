"""`sightline bench soak`: a mixed load for minutes; afterwards the server must hold nothing, and no more memory."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sightline.cli.bench_target import add_seed_flag, add_server_flags, chosen_seed, target_config
from sightline.cli.kept_figures import command, keep

if TYPE_CHECKING:
    from sightline.bench.load.soak import SoakConfig, SoakResult
    from sightline.bench.load.target import TargetConfig


def add_command(actions: Any) -> None:
    parser = actions.add_parser("soak", help="a mixed load for minutes; does the server leak?")
    parser.add_argument("--minutes", type=float, default=10.0, metavar="X", help="(default: 10)")
    parser.add_argument("--concurrency", type=int, default=16, metavar="N", help="questions at once (default: 16)")
    parser.add_argument("--warm-up", type=float, default=30.0, metavar="S", help="seconds before memory is read (default: 30)")
    parser.add_argument("--largest-side", type=int, default=2048, metavar="N", help="of a picture, pixels (default: 2048)")
    parser.add_argument("--most-images", type=int, default=4, metavar="N", help="of a question (default: 4)")
    parser.add_argument("--long-answer", type=int, default=1024, metavar="N", help="tokens of a long answer (default: 1024)")
    parser.add_argument("--input-len", type=int, default=64, metavar="N", help="text tokens, on average (default: 64)")
    parser.add_argument(
        "--admin-api-key", metavar="KEY", help="the server's; with it caches are emptied and the engine's memory is read"
    )
    parser.add_argument("--gpu-slack", type=float, default=512.0, metavar="MB", help="the GPU's may grow by (default: 512)")
    parser.add_argument(
        "--process-slack", type=float, default=1024.0, metavar="MB", help="memory of a process may grow by (default: 1024)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to keep the report")
    parser.add_argument("--summary", type=Path, metavar="FILE", help="summary.json to add the number of complaints to")
    add_server_flags(parser)
    add_seed_flag(parser)
    parser.set_defaults(run=run, subparser=parser)


def run(arguments: argparse.Namespace) -> int:
    from sightline.bench.load.connection import in_event_loop
    from sightline.bench.load.soak import SoakConfig, result_fields
    from sightline.bench.summary import add_to_summary

    config = SoakConfig(
        minutes=arguments.minutes,
        concurrency=arguments.concurrency,
        largest_side=arguments.largest_side,
        most_images=arguments.most_images,
        long_answer=arguments.long_answer,
        input_len=arguments.input_len,
        seed=chosen_seed(arguments),
        warm_up_s=arguments.warm_up,
        gpu_slack_mb=arguments.gpu_slack,
        process_slack_mb=arguments.process_slack,
        admin_api_key=arguments.admin_api_key,
    )
    result, device = in_event_loop(_measure(target_config(arguments), config))
    asked = sum(result.tally.asked.values())
    print(f"{asked} questions, {result.tally.left} left in the middle, {result.tally.output_tokens} tokens")
    for complaint in result.complaints:
        print(f"wrong: {complaint}")
    if not result.complaints:
        print("No error, nothing held, no more memory than before.")
    if arguments.json is not None:
        about: dict[str, object] = {"benchmark": "soak", "command": command(), "device": device}
        keep(arguments.json, {**about, **result_fields(config, result)})
    if arguments.summary is not None:
        add_to_summary(arguments.summary, {"soak_complaints": float(len(result.complaints))}, command(), device)
    return 1 if result.complaints else 0


async def _measure(target_settings: "TargetConfig", config: "SoakConfig") -> "tuple[SoakResult, str]":
    from sightline.bench.load.connection import connected
    from sightline.bench.load.serve import words_to_tokens
    from sightline.bench.load.server_metrics import served_device
    from sightline.bench.load.soak import run_soak

    async with connected(target_settings) as target:
        per_word = await words_to_tokens(target)
        return await run_soak(config, target, per_word, lambda line: print(line, flush=True)), await served_device(target)
