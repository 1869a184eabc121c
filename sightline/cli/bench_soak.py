"""`sightline bench soak`: a mixed load for minutes; afterwards the server must hold nothing, and no more memory."""

import argparse
import shlex
import tempfile
from collections import Counter
from collections.abc import Coroutine
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sightline.cli.bench_target import add_seed_flag, add_server_flags, chosen_seed, target_config
from sightline.cli.kept_figures import command, keep
from sightline.errors import ConfigError

if TYPE_CHECKING:
    from sightline.bench.load.soak_report import SoakConfig, SoakResult
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
    parser.add_argument(
        "--hostile",
        type=Path,
        nargs="+",
        default=(),
        metavar="FOLDER",
        help="of files that are meant to hurt: a third of the questions are about them",
    )
    parser.add_argument(
        "--own-server", metavar="FLAGS", help="start a server with these flags of 'sightline serve', all in one argument"
    )
    parser.add_argument(
        "--kill-every", type=float, default=0.0, metavar="S", help="kill each process of the own server once in so many seconds"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to keep the report")
    parser.add_argument("--summary", type=Path, metavar="FILE", help="summary.json to add the number of complaints to")
    add_server_flags(parser)
    add_seed_flag(parser)
    parser.set_defaults(run=run, subparser=parser)


def run(arguments: argparse.Namespace) -> int:
    from sightline.bench.load.connection import in_event_loop
    from sightline.bench.load.soak_report import SoakConfig, result_fields
    from sightline.bench.summary import add_to_summary, commit

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
        hostile=tuple(arguments.hostile),
        kills=arguments.kill_every > 0,
    )
    if config.kills and arguments.own_server is None:
        raise ConfigError("--kill-every needs --own-server: processes of others are left alone.")
    kills: Counter[str] = Counter()
    if arguments.own_server is not None:
        result, device, kills = in_event_loop(_measure_own(arguments, config))
    else:
        result, device = in_event_loop(_measure(target_config(arguments), config))
    asked = sum(result.tally.asked.values())
    print(f"{asked} questions, {result.tally.left} left in the middle, {result.tally.output_tokens} tokens")
    if config.hostile or config.kills:
        print(f"{result.tally.refused} hostile ones refused, {result.tally.interrupted} interrupted by kills")
    for complaint in result.complaints:
        print(f"wrong: {complaint}")
    if not result.complaints:
        print("No error, nothing held, no more memory than before.")
    if arguments.json is not None:
        about: dict[str, object] = {"benchmark": "soak", "command": command(), "commit": commit(), "device": device}
        about |= {"killed": dict(kills)} if config.kills else {}
        keep(arguments.json, {**about, **result_fields(config, result)})
    if arguments.summary is not None:
        add_to_summary(arguments.summary, {"soak_complaints": float(len(result.complaints))}, command(), device)
    return 1 if result.complaints else 0


async def _measure_own(arguments: argparse.Namespace, config: "SoakConfig") -> "tuple[SoakResult, str, Counter[str]]":
    """With a server of its own, whose processes may be killed while questions are asked, and not before or after."""
    from sightline.bench.soak_server import SoakServer

    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        server = SoakServer(shlex.split(arguments.own_server), Path(folder))
        server.start()
        try:
            await server.until_ready()
            target = replace(target_config(arguments), base_url=server.url)
            own = replace(config, admin_api_key=server.admin_key)
            result, device = await _measure(target, own, server.kill_in_turn(arguments.kill_every) if config.kills else None)
        finally:
            server.stop()
    if config.kills:
        print(", ".join(f"{name} killed {count} times" for name, count in sorted(server.kills.items())))
    return replace(result, complaints=[*result.complaints, *server.complaints]), device, server.kills


async def _measure(
    target_settings: "TargetConfig", config: "SoakConfig", meanwhile: Coroutine[Any, Any, None] | None = None
) -> "tuple[SoakResult, str]":
    from sightline.bench.load.connection import connected
    from sightline.bench.load.serve import words_to_tokens
    from sightline.bench.load.server_metrics import served_device
    from sightline.bench.load.soak import run_soak

    async with connected(target_settings) as target:
        per_word = await words_to_tokens(target)
        result = await run_soak(config, target, per_word, lambda line: print(line, flush=True), meanwhile)
        return result, await served_device(target)
