"""`sightline bench multiturn`: TTFT of each round of a conversation that grows by a picture a round."""

import argparse
from typing import TYPE_CHECKING, Any

from sightline.cli.bench_target import (
    add_image_flags,
    add_seed_flag,
    add_target_flags,
    chosen_seed,
    extra_body,
    image_kinds,
    image_settings,
    keep_in_summary,
    keep_record,
    target_config,
)

if TYPE_CHECKING:
    from sightline.bench.load.multiturn import MultiturnConfig, Round


def add_command(actions: Any) -> None:
    parser = actions.add_parser("multiturn", help="TTFT by round of a conversation that grows by a picture a round")
    parser.add_argument("--rounds", type=int, default=8, metavar="N", help="(default: 8)")
    parser.add_argument(
        "--conversations", type=int, default=1, metavar="N", help="per resolution; medians are shown (default: 1)"
    )
    parser.add_argument("--input-len", type=int, default=32, metavar="N", help="text tokens per round (default: 32)")
    parser.add_argument("--output-len", type=int, default=16, metavar="N", help="tokens per answer (default: 16)")
    parser.add_argument("--stop-at-eos", action="store_true", help="answers may be shorter; do not send ignore_eos")
    parser.add_argument("--no-warmup", action="store_true", help="the first round counts even if the server is cold")
    parser.add_argument("--no-progress", action="store_true", help="no bar")
    parser.add_argument(
        "--summary-key",
        metavar="NAME",
        help="what --summary calls the last round's TTFT, before the size (default: round7_ttft_ms, or another number)",
    )
    add_image_flags(parser, resolutions=True)
    add_target_flags(parser)
    add_seed_flag(parser)
    parser.set_defaults(run=run, subparser=parser)


def run(arguments: argparse.Namespace) -> int:
    from sightline.bench.load.connection import in_event_loop
    from sightline.bench.load.multiturn import MultiturnConfig, last_round_figures, round_fields
    from sightline.bench.load.record import heading

    seed = chosen_seed(arguments)
    config = MultiturnConfig(
        target=target_config(arguments),
        images=image_kinds(arguments),
        rounds=arguments.rounds,
        conversations=arguments.conversations,
        input_len=arguments.input_len,
        output_len=arguments.output_len,
        ignore_eos=not arguments.stop_at_eos,
        warm_up=not arguments.no_warmup,
        seed=seed,
        extra_body=extra_body(arguments),
        progress=not arguments.no_progress,
    )
    model, rounds = in_event_loop(_measure(config))
    print(_tables(rounds))
    settings = {
        "label": arguments.label,
        "model_id": model,
        "resolutions": [kind.resolution for kind in config.images],
        "num_rounds": config.rounds,
        "conversations": config.conversations,
        "input_len": config.input_len,
        "output_len": config.output_len,
        "ignore_eos": config.ignore_eos,
        "seed": config.seed,
        "extra_body": config.extra_body,
        **image_settings(arguments),
    }
    keep_record(arguments, {**heading("multiturn", settings), "rounds": [round_fields(found) for found in rounds]})
    keep_in_summary(arguments, last_round_figures(rounds, arguments.summary_key))
    return 0 if any(found.ttfts_ms for found in rounds) else 1


async def _measure(config: "MultiturnConfig") -> tuple[str, "list[Round]"]:
    from sightline.bench.load.connection import connected
    from sightline.bench.load.multiturn import run_multiturn
    from sightline.bench.load.serve import words_to_tokens

    async with connected(config.target) as target:
        return target.model, await run_multiturn(config, target, await words_to_tokens(target))


def _tables(rounds: "list[Round]") -> str:
    """One row per round, one column per resolution, for each figure that the server made known."""
    from sightline.bench.load.tables import Cell, table

    resolutions = list(dict.fromkeys(found.resolution for found in rounds))
    numbers = sorted({found.number for found in rounds})
    by_number = {(found.number, found.resolution): found for found in rounds}
    figures: list[tuple[str, Any]] = [
        ("TTFT, ms", lambda found: found.ttft_ms),
        ("vision tower, ms", lambda found: found.tower_ms),
        ("images encoded", lambda found: found.encoded_items),
        ("prompt tokens", lambda found: found.prompt_tokens),
        ("cached tokens", lambda found: found.cached_tokens),
    ]
    parts = []
    for title, figure in figures:
        rows: list[list[Cell]] = [
            [f"round {number}", *(figure(by_number[number, name]) for name in resolutions)] for number in numbers
        ]
        if any(cell is not None for row in rows for cell in row[1:]):
            parts.append(table([title, *resolutions], rows))
    errors = [f"{found.resolution}, round {found.number}: {found.error}" for found in rounds if found.error]
    if errors:
        parts.append("\n".join(["What failed:", *errors]))
    return "\n\n".join(parts)
