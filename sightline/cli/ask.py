"""`sightline ask`: one question about images and videos, one answer."""

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from sightline.cli.flags import add_config_flags, config_from_flags
from sightline.prompt.media_options import SAMPLING
from sightline.types import Completion, SamplingParams


def add_command(commands: Any) -> None:
    parser = commands.add_parser("ask", help="answer one question about images, videos or PDFs")
    parser.add_argument("question", help="what to ask")
    parser.add_argument("--image", action="append", default=[], metavar="PATH", help="a path or URL; may be repeated")
    parser.add_argument("--video", action="append", default=[], metavar="PATH", help="a path or URL; may be repeated")
    parser.add_argument("--file", action="append", default=[], metavar="PATH", help="path or URL of a PDF; may be repeated")
    parser.add_argument(
        "--frames",
        action="append",
        nargs="+",
        default=[],
        metavar="PATH",
        help="images that are a video together; may be repeated",
    )
    parser.add_argument(
        "--fps", type=float, metavar="X", help="frames to see of a second; with --frames, how many a second they are"
    )
    parser.add_argument("--num-frames", type=int, metavar="N", help="frames to see of each video")
    parser.add_argument("--max-frames", type=int, metavar="N", help="most frames to see of each video")
    parser.add_argument("--max-tokens", type=int, metavar="N", help="longest answer (default: the model's, else 256)")
    parser.add_argument("--temperature", type=float, metavar="X", help="0 is greedy (default: the model's)")
    parser.add_argument("--timings", action="store_true", help="also print tokens and time per stage")
    add_config_flags(parser)
    parser.set_defaults(run=run, subparser=parser)


def run(arguments: argparse.Namespace) -> None:
    from sightline.llm import LLM  # imports torch, which `--help` need not wait for

    config = config_from_flags(arguments)
    sampling = SamplingParams(max_tokens=arguments.max_tokens, temperature=arguments.temperature)
    videos = [*arguments.video, *arguments.frames]
    message = user_message(arguments.question, arguments.image, videos, arguments.file)
    chosen = {name: getattr(arguments, name) for name in SAMPLING if getattr(arguments, name) is not None}
    with LLM(config.model.model, config) as llm:
        answer = llm.chat([message], sampling, mm_processor_kwargs=chosen)
    print(answer.text)
    if arguments.timings:
        print_timings(answer)


def user_message(
    question: str, images: Sequence[str] = (), videos: Sequence[str | Sequence[str]] = (), files: Sequence[str] = ()
) -> dict[str, Any]:
    """A video may be a list of its frames."""
    parts: list[Mapping[str, Any]] = [{"type": "image", "image": image} for image in images]
    parts += [{"type": "video", "video": video} for video in videos]
    parts += [{"type": "file", "file": file} for file in files]
    return {"role": "user", "content": [*parts, {"type": "text", "text": question}]}


def print_timings(answer: Completion) -> None:
    stages = "  ".join(f"{stage} {1000 * seconds:.0f} ms" for stage, seconds in answer.timings.items())
    print(f"tokens    {answer.prompt_tokens} in ({answer.cached_tokens} cached), {len(answer.token_ids)} out")
    print(f"ended     by {answer.finish_reason}")
    print(f"time      {stages}")
