"""`sightline demo`: asks about a picture that comes with the package, on the CPU, with nothing to download."""

import argparse
import time
from importlib import resources
from typing import Any

from sightline.cli.ask import print_timings, user_message
from sightline.types import SamplingParams

PICTURE = "demo/sign.png"
QUESTION = "What does the sign say?"


def add_command(commands: Any) -> None:
    parser = commands.add_parser("demo", help="ask about a bundled picture on the CPU")
    parser.add_argument("--image", metavar="PATH", help="another picture")
    parser.add_argument("--question", default=QUESTION, help="another question")
    parser.set_defaults(run=run, subparser=parser)


def run(arguments: argparse.Namespace) -> None:
    from sightline.llm import LLM

    with resources.as_file(resources.files("sightline.data") / PICTURE) as bundled:
        picture = arguments.image or str(bundled)
        start = time.perf_counter()
        with LLM(device="cpu") as llm:
            loaded = time.perf_counter() - start
            answer = llm.chat([user_message(arguments.question, [picture])], SamplingParams(max_tokens=32))
        print("model     the one that comes with the package; it is small and still in training, so it is often wrong")
        print(f"image     {picture} ({_size_of(picture)})")
        print(f"question  {arguments.question}")
        print(f"answer    {answer.text}")
        print_timings(answer)
        print(f"load      {1000 * loaded:.0f} ms")


def _size_of(picture: str) -> str:
    from sightline.config import MediaConfig
    from sightline.media.source import load_image

    header = load_image(picture, MediaConfig()).header
    return f"{header.width} x {header.height}, {header.format}"
