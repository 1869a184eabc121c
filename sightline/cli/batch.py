"""`sightline batch`: a file of requests to a file of answers, in OpenAI's batch format."""

import argparse
import dataclasses
import logging
import sys
from pathlib import Path
from typing import Any

from sightline.cli.flags import Parser, add_config_flags, add_flags, config_from_flags, from_flags
from sightline.config import Config, ServerConfig
from sightline.errors import ConfigError

SOME_FAILED = 3  # exit code: it came to its end, and rows are in the file of errors
# What a server's settings say of requests and engines; the others are about a network.
SETTINGS = (
    "data_parallel_size", "served_model_name", "accept_any_model_name", "enable_mm_embeds", "max_request_mb", "max_inflight_mb",
    "default_max_tokens", "max_output_tokens", "max_n", "ignore_unknown_fields", "enable_response_timings", "log_level",
    "max_restarts", "engine_timeout_s", "restart_backoff_s", "worker_threads", "kept_media_mb",
)  # fmt: skip
REQUEST_TIMEOUT_S = 7 * 86400.0  # rows may wait long for their turn; an engine that hangs is found by its heartbeat


def add_command(commands: Any) -> None:
    parser = commands.add_parser("batch", help="answer a file of requests, in OpenAI's batch format")
    parser.add_argument("requests", type=Path, metavar="IN", help="JSON lines with custom_id, method, url and body")
    parser.add_argument(
        "answers", type=Path, metavar="OUT", help="where answers go; rows that are answered there are not asked again"
    )
    parser.add_argument(
        "--error-file",
        type=Path,
        metavar="FILE",
        help="where rows without an answer go (default: OUT with .errors before .jsonl)",
    )
    parser.add_argument(
        "--concurrency", type=int, metavar="N", help="most rows in progress (default: twice max_num_seqs, for each engine)"
    )
    _add_options(parser)
    parser.set_defaults(run=run, subparser=parser)


def _add_options(parser: Parser) -> None:
    add_flags(parser, ServerConfig, [field.name for field in dataclasses.fields(ServerConfig) if field.name not in SETTINGS])
    add_config_flags(parser)


def run(arguments: argparse.Namespace) -> int:
    import uvloop

    from sightline.batch.run import BatchPlan, BatchStopped, run_batch
    from sightline.host_memory import keep_freed_memory
    from sightline.media.pillow import silence_warnings

    config, plan = batch_config(arguments), BatchPlan(*_files(arguments), _concurrency(arguments))
    level = config.server.log_level_number
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    silence_warnings()
    keep_freed_memory()
    try:
        totals = uvloop.run(run_batch(config, plan))
    except BatchStopped as stop:
        print("sightline: The batch was stopped; run it again to go on.", file=sys.stderr)
        return 128 + stop.number
    media = [f"{count:,} {kind}" for kind, count in (("images", totals.images), ("videos", totals.videos)) if count]
    tokens = f"{totals.prompt_tokens:,} tokens in, {totals.completion_tokens:,} out"
    print(f"{totals.sentence()}, {totals.seconds:.1f} s; {', '.join([*media, tokens])}")
    if totals.failed:
        print(f"Rows without an answer: {plan.errors}")
    return SOME_FAILED if totals.failed else 0


def batch_config(arguments: argparse.Namespace) -> Config:
    server = dataclasses.replace(
        from_flags(ServerConfig, arguments),
        request_timeout_s=REQUEST_TIMEOUT_S,
        max_inflight_requests=_concurrency(arguments),
    )
    config = config_from_flags(arguments)
    engine = config.engine
    if engine.target_itl_ms is None:  # nobody watches the answers grow
        engine = dataclasses.replace(engine, target_itl_ms=0.0)
    return dataclasses.replace(config, engine=engine, server=server)


def _concurrency(arguments: argparse.Namespace) -> int:
    engines = from_flags(ServerConfig, arguments).data_parallel_size
    given: int | None = arguments.concurrency
    found = 2 * config_from_flags(arguments).engine.max_num_seqs * engines if given is None else given
    if found < 1:
        raise ConfigError(f"--concurrency is {found}, but must be at least 1.")
    return found


def _files(arguments: argparse.Namespace) -> tuple[Path, Path, Path]:
    requests, answers = arguments.requests, arguments.answers
    errors = arguments.error_file or answers.with_name(f"{answers.name.removesuffix('.jsonl')}.errors.jsonl")
    named = {"IN": requests, "OUT": answers, "--error-file": errors}
    for one, other in (("IN", "OUT"), ("IN", "--error-file"), ("OUT", "--error-file")):
        if named[one].resolve() == named[other].resolve():
            raise ConfigError(f"{one} and {other} are the same file, {named[one]}.")
    return requests, answers, errors
