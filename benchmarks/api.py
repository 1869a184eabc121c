"""`python -m benchmarks.api`: what a request with images costs the API process; no weights."""

import argparse
import sys
from pathlib import Path

from benchmarks.benchmark import Benchmark, Results
from sightline.cli.flags import Parser, add_flags, from_flags
from sightline.config import ModelConfig
from sightline.errors import ConfigError


def add_options(parser: Parser) -> None:
    parser.add_argument("--images", type=int, nargs="+", default=[1, 8, 64], metavar="N", help="images (default: 1 8 64)")
    parser.add_argument("--repeats", type=int, default=20, metavar="N", help="requests to take medians over (default: 20)")
    parser.add_argument(
        "--round-trips",
        type=int,
        default=100,
        metavar="N",
        help="requests with one image over HTTP to a server whose engine computes nothing (default: 100; 0: none)",
    )
    parser.add_argument(
        "--streams",
        type=int,
        nargs="*",
        default=[32, 128],
        metavar="N",
        help="streams at once whose tokens are charged to the processor (default: 32 128)",
    )
    parser.add_argument(
        "--conversations",
        type=int,
        default=9,
        metavar="N",
        help="of 12 rounds, each with one more 1080p PNG screenshot, to take medians over (default: 9; 0: none)",
    )
    add_flags(parser, ModelConfig)


def run(arguments: argparse.Namespace) -> Results:
    from benchmarks.measure.api_cost import MANY, STAGES, TARGET_MS, make_body, measure, model_files, one_core, report
    from benchmarks.measure.round_trip import round_trip, stream_costs

    streams = sorted(set(arguments.streams))
    counts = [("--images", count) for count in arguments.images] + [("--streams", count) for count in streams]
    for name, value in [("--repeats", arguments.repeats), *counts]:
        if value < 1:
            raise ConfigError(f"{name} is {value}, but must be at least 1.")
    print(f"milliseconds of the processor per image, medians, one core; the target is {TARGET_MS:g}")
    print("images  body, MB   tokens" + "".join(f"{stage:>9s}" for stage in STAGES) + "    total   total of the request")
    costs, trip, again, charged, talk = [], None, None, [], None
    with model_files(from_flags(ModelConfig, arguments)) as files:
        with one_core():
            for count in sorted(set(arguments.images)):
                cost = measure(files, count, arguments.repeats)
                costs.append(cost)
                shares = "".join(f"{cost.stages[stage] / count:9.3f}" for stage in STAGES)
                print(f"{count:6d}{cost.body_mb:10.2f}{cost.prompt_tokens:9d}{shares}{cost.per_image:9.3f}{cost.total:17.2f}")
        if arguments.round_trips > 0:
            trip = round_trip(files.folder, make_body(1, max_tokens=1), arguments.round_trips)
            print("one image over HTTP and an engine that computes nothing, milliseconds: tenth, median, ninth tenth")
            for name in ("send", "answer", "ttft"):
                print(f"{name:>8s}" + "".join(f"{value:9.3f}" for value in getattr(trip, name)))
            print(f"{MANY} known images, milliseconds to the first event: files sent to the engine each time, and kept there")
            body, requests = make_body(MANY, max_tokens=1), -(-arguments.round_trips // 4)
            again = round_trip(files.folder, body, requests, kept_media_mb=0), round_trip(files.folder, body, requests)
            print("    ttft" + "".join(f"{each.ttft[1]:9.3f}" for each in again))
        if streams:
            charged = stream_costs(files.folder, streams, tokens=200)
            print("streams   processor, us per token   tokens per second that one core can pass on")
            for each in charged:
                print(f"{each.streams:7d}{each.processor_us:26.1f}{each.tokens_per_second:46.0f}")
        if arguments.conversations > 0:
            talk = _conversation(files.folder, arguments.conversations)
    return Results("cpu", report(costs, arguments.repeats, trip, again, charged, talk))


def _conversation(model: Path, conversations: int) -> dict[str, object]:
    from benchmarks.measure.conversation_cost import SCREENS, as_json, conversation_cost
    from benchmarks.measure.timed_server import STAGES

    found: dict[str, object] = {"image": "PNG 1080p, screen", "conversations": conversations}
    print("a conversation of screenshots over HTTP: milliseconds of the API process on the clock, and of the client")
    for known in (False, True):
        print("known files by comparing" if known else "every file hashed and read again")
        print("round  body, MB" + "".join(f"{stage:>8s}" for stage in STAGES) + "     all  client")
        costs = conversation_cost(model, conversations, SCREENS, known)
        for cost in costs:
            shares = "".join(f"{cost.stages[stage]:8.2f}" for stage in STAGES)
            print(f"{cost.number:5d}{cost.body_mb:10.2f}{shares}{sum(cost.stages.values()):8.2f}{cost.client_ms:8.2f}")
        found["known" if known else "hashed_again"] = as_json(costs)
    return found


BENCHMARK = Benchmark("api", "what a request with images costs the API process, on one core; no weights", add_options, run)

if __name__ == "__main__":
    sys.exit(BENCHMARK.main())
