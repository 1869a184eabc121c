"""`sightline bench serve`: throughput and latency of a server under load."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sightline.cli.bench_target import (
    add_image_flags,
    add_seed_flag,
    add_target_flags,
    chosen_seed,
    extra_body,
    image_kind,
    image_settings,
    keep_in_summary,
    keep_record,
    target_config,
)
from sightline.errors import ConfigError

if TYPE_CHECKING:
    from sightline.bench.load.ranges import IntRange
    from sightline.bench.load.serve import ServeConfig

# Names that benchmarks have for one thing: chat requests to an OpenAI-compatible server. The first is ours.
_BACKENDS = ("openai-chat", "sglang-oai-chat", "vllm-chat", "lmdeploy-chat")
_EXPLANATION = """\
Sends chat requests to any OpenAI-compatible server and prints throughput and latencies.
--image-count, --image-resolution and --output-len may be ranges such as 0-3, from which each request or picture draws its own.
Names of options and of figures follow `vllm bench serve` and `sglang.bench_serving` where they mean the same."""


def add_command(actions: Any) -> None:
    parser = actions.add_parser("serve", help="throughput and latency of a server under load", description=_EXPLANATION)
    parser.add_argument(
        "--dataset-name", choices=("image", "text", "video", "mmmu", "custom"), default="image", help="(default: image)"
    )
    parser.add_argument(
        "--dataset-path",
        type=Path,
        metavar="PATH",
        help="of custom: a JSONL file; of mmmu: its folder (default: the Hub's cache)",
    )
    parser.add_argument("--num-prompts", type=int, default=100, metavar="N", help="requests to send (default: 100)")
    parser.add_argument(
        "--request-rate", type=float, default=float("inf"), metavar="X", help="requests per second, Poisson (default: inf)"
    )
    parser.add_argument("--max-concurrency", type=int, metavar="N", help="most requests under way at once (default: no limit)")
    parser.add_argument("--num-warmups", type=int, default=1, metavar="N", help="requests before the clock starts (default: 1)")
    parser.add_argument("--input-len", type=int, default=128, metavar="N", help="text tokens per request (default: 128)")
    parser.add_argument("--output-len", type=_range, default="128", metavar="N", help="most tokens of an answer (default: 128)")
    parser.add_argument(
        "--random-range-ratio",
        type=float,
        default=1.0,
        metavar="X",
        help="lengths of text and answer are drawn, from this share of --input-len and --output-len to all of it (default: 1)",
    )
    parser.add_argument(
        "--backend",
        choices=_BACKENDS,
        default=_BACKENDS[0],
        help=f"what the results call it; all of these are the same chat requests (default: {_BACKENDS[0]})",
    )
    parser.add_argument(
        "--tokenizer", metavar="MODEL", help="folder or Hub id whose tokenizer counts the answers' tokens once more"
    )
    parser.add_argument("--ignore-eos", action="store_true", help="answers go on until --output-len")
    parser.add_argument("--no-stream", action="store_true", help="ask for whole answers; only their end is timed")
    parser.add_argument("--image-count", type=_range, default="1", metavar="N", help="pictures per request (default: 1)")
    parser.add_argument(
        "--distinct-images", type=int, metavar="N", help="show only so many different pictures (default: each is new)"
    )
    parser.add_argument(
        "--media-position", choices=("first", "last"), default="first", help="before or after the text (default: first)"
    )
    parser.add_argument("--video-resolution", default="360p", metavar="SIZE", help="(default: 360p)")
    parser.add_argument("--video-frames", type=int, default=32, metavar="N", help="(default: 32)")
    parser.add_argument("--video-fps", type=int, default=8, metavar="N", help="(default: 8)")
    parser.add_argument(
        "--video-content",
        choices=("photo", "screen"),
        default="photo",
        help="a window that wanders over a picture like a photograph, or a recording of a drawn screen (default: photo)",
    )
    parser.add_argument(
        "--video-repeat",
        type=float,
        default=0.0,
        metavar="X",
        help="share of frames that are equal to the one before; the others come in bursts (default: 0)",
    )
    parser.add_argument(
        "--again", action="store_true", help="send every request once before the clock starts, so that the server knows it"
    )
    parser.add_argument(
        "--summary-key",
        metavar="KEY",
        help="what the figure is called in --summary: ttft_ms.SIZE, repeat_ttft_ms.SIZE, serve_rps.SIZE, decode_tok_s.N, ...",
    )
    parser.add_argument(
        "--return-timings", action="store_true", help="ask a Sightline server what its tower took, and keep it (tower_ms)"
    )
    parser.add_argument("--save-texts", action="store_true", help="keep the answers' texts in --output, too")
    parser.add_argument("--no-progress", action="store_true", help="no bars")
    add_image_flags(parser)
    add_target_flags(parser)
    add_seed_flag(parser)
    _add_other_spellings(parser)
    parser.set_defaults(run=run, subparser=parser)


def _add_other_spellings(parser: argparse.ArgumentParser) -> None:
    """Flags of sglang.bench_serving that mean what ours mean; `--help` shows ours alone."""
    quiet: dict[str, Any] = {"default": argparse.SUPPRESS, "help": argparse.SUPPRESS}
    parser.add_argument("--random-input-len", dest="input_len", type=int, metavar="N", **quiet)
    parser.add_argument("--random-output-len", dest="output_len", type=_range, metavar="N", **quiet)
    parser.add_argument("--warmup-requests", dest="num_warmups", type=int, metavar="N", **quiet)
    parser.add_argument("--output-file", dest="output", type=Path, metavar="FILE", **quiet)
    parser.add_argument("--disable-stream", dest="no_stream", action="store_true", **quiet)
    parser.add_argument("--disable-tqdm", dest="no_progress", action="store_true", **quiet)
    parser.add_argument("--disable-ignore-eos", dest="ignore_eos", action="store_false", **quiet)
    parser.add_argument("--extra-request-body", dest="extra_body", metavar="JSON", **quiet)
    # A chat request always goes through the model's template.
    parser.add_argument("--apply-chat-template", dest="always_on", action="store_true", **quiet)


def _range(text: str) -> "IntRange":
    from sightline.bench.load.ranges import int_range

    try:
        return int_range(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def run(arguments: argparse.Namespace) -> int:
    from sightline.bench.load.block import result_block, warnings
    from sightline.bench.load.datasets import DatasetConfig
    from sightline.bench.load.record import serve_record
    from sightline.bench.load.serve import ServeConfig, bench_serve
    from sightline.bench.load.summary_keys import check_serve_key, serve_figure
    from sightline.bench.load.videos import VideoKind

    if (arguments.summary is None) != (arguments.summary_key is None):
        raise ConfigError("--summary and --summary-key belong together: give both or none.")
    if arguments.summary_key is not None:
        check_serve_key(arguments.summary_key)
    seed = chosen_seed(arguments)
    config = ServeConfig(
        target=target_config(arguments),
        dataset=DatasetConfig(
            name=arguments.dataset_name,
            input_len=arguments.input_len,
            output_len=arguments.output_len,
            range_ratio=arguments.random_range_ratio,
            seed=seed,
            image=image_kind(arguments),
            image_count=arguments.image_count,
            distinct_images=arguments.distinct_images,
            media_position=arguments.media_position,
            video=VideoKind(
                arguments.video_resolution,
                arguments.video_frames,
                arguments.video_fps,
                arguments.video_content,
                arguments.video_repeat,
            ),
            path=arguments.dataset_path,
        ),
        num_prompts=arguments.num_prompts,
        request_rate=arguments.request_rate,
        max_concurrency=arguments.max_concurrency,
        num_warmups=arguments.num_warmups,
        again=arguments.again,
        stream=not arguments.no_stream,
        ignore_eos=arguments.ignore_eos,
        extra_body=extra_body(arguments),
        progress=not arguments.no_progress,
        tokenizer=arguments.tokenizer,
        return_timings=arguments.return_timings,
    )
    done = bench_serve(config, say=lambda line: print(line, file=sys.stderr))
    busy = done.device_busy_share
    load = (config.request_rate, config.max_concurrency)
    print(result_block(done.figures, done.result.lag, *load, busy, arguments.backend))
    for warning in warnings(done.figures, done.result.lag):
        print(f"Warning: {warning}", file=sys.stderr)
    settings = _settings(arguments, done.model, config, len(done.result.answers))
    keep_record(arguments, serve_record(done.result, done.figures, settings, arguments.save_texts, busy))
    if arguments.summary_key is not None:
        value = serve_figure(arguments.summary_key, done.figures)
        if value is None:
            print(f"Warning: {arguments.summary_key} is not kept: requests failed.", file=sys.stderr)
            return 1
        keep_in_summary(arguments, {arguments.summary_key: value})
    return 0 if done.figures.completed else 1


def _settings(arguments: argparse.Namespace, model: str, config: "ServeConfig", sent: int) -> dict[str, Any]:
    """What is needed to repeat the run, but for where the server is."""
    settings = {
        "label": arguments.label,
        "model_id": model,
        "backend": arguments.backend,
        "num_prompts": sent,
        "request_rate": arguments.request_rate,
        "burstiness": 1.0,
        "max_concurrency": arguments.max_concurrency,
        "dataset_name": arguments.dataset_name,
        "num_warmups": arguments.num_warmups,
        "again": arguments.again,
        "input_len": arguments.input_len,
        "output_len": arguments.output_len.shown,
        "random_range_ratio": arguments.random_range_ratio,
        "ignore_eos": arguments.ignore_eos,
        "stream": not arguments.no_stream,
        "seed": config.dataset.seed,
        "extra_body": config.extra_body,
    }
    if arguments.dataset_name == "image":
        settings |= {
            "image_count": arguments.image_count.shown,
            "image_resolution": arguments.image_resolution,
            "distinct_images": arguments.distinct_images,
            "media_position": arguments.media_position,
            **image_settings(arguments),
        }
    if arguments.dataset_name == "video":
        settings |= {
            "video_resolution": arguments.video_resolution,
            "video_frames": arguments.video_frames,
            "video_fps": arguments.video_fps,
            "video_content": arguments.video_content,
            "video_repeat": arguments.video_repeat,
            "media_position": arguments.media_position,
        }
    return settings
