"""`sightline ask`: one question about images and videos, one answer."""

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from sightline.cli.flags import add_config_flags, config_from_flags
from sightline.types import Completion, SamplingParams


def add_command(commands: Any) -> None:
    parser = commands.add_parser("ask", help="answer one question about images or videos")
    parser.add_argument("question", help="what to ask")
    parser.add_argument("--image", action="append", default=[], metavar="PATH", help="a path or URL; may be repeated")
    parser.add_argument("--video", action="append", default=[], metavar="PATH", help="a path or URL; may be repeated")
    parser.add_argument("--max-tokens", type=int, metavar="N", help="longest answer (default: the model's, else 256)")
    parser.add_argument("--temperature", type=float, metavar="X", help="0 is greedy (default: the model's)")
    parser.add_argument("--timings", action="store_true", help="also print tokens and time per stage")
    add_config_flags(parser)
    parser.set_defaults(run=run, subparser=parser)


def run(arguments: argparse.Namespace) -> None:
    from sightline.llm import LLM  # imports torch, which `--help` need not wait for

    config = config_from_flags(arguments)
    message = user_message(arguments.question, arguments.image, arguments.video)
    with LLM(config.model.model, config) as llm:
        answer = llm.chat([message], SamplingParams(max_tokens=arguments.max_tokens, temperature=arguments.temperature))
    print(answer.text)
    if arguments.timings:
        print_timings(answer)


def user_message(question: str, images: Sequence[str] = (), videos: Sequence[str] = ()) -> dict[str, Any]:
    parts: list[Mapping[str, Any]] = [{"type": "image", "image": image} for image in images]
    parts += [{"type": "video", "video": video} for video in videos]
    return {"role": "user", "content": [*parts, {"type": "text", "text": question}]}


def print_timings(answer: Completion) -> None:
    stages = "  ".join(f"{stage} {1000 * seconds:.0f} ms" for stage, seconds in answer.timings.items())
    print(f"tokens    {answer.prompt_tokens} in ({answer.cached_tokens} cached), {len(answer.token_ids)} out")
    print(f"ended     by {answer.finish_reason}")
    print(f"time      {stages}")
