"""`sightline demo`: asks about pictures that come with the package, on the CPU, with nothing to download."""

import argparse
import json
import shutil
import sys
import time
from importlib import resources
from pathlib import Path
from typing import Any

from sightline.cli.ask import print_timings, user_message
from sightline.types import SamplingParams

FOLDER = "demo"  # in sightline.data; questions.json there names the pictures, questions and right answers


def add_command(commands: Any) -> None:
    parser = commands.add_parser("demo", help="ask about bundled pictures on the CPU")
    parser.add_argument("--image", metavar="PATH", help="ask about this picture instead")
    parser.add_argument("--question", default="What does the sign say?", help="what to ask about --image")
    parser.set_defaults(run=run, subparser=parser)


def run(arguments: argparse.Namespace) -> None:
    from sightline.llm import LLM

    start = time.perf_counter()
    with LLM(device="cpu") as llm:
        print(f"model     the small one that comes with the package, loaded in {time.perf_counter() - start:.1f} s")
        if arguments.image:
            answer = llm.chat([user_message(arguments.question, [arguments.image])], SamplingParams(max_tokens=48))
            print(f"image     {arguments.image}\nquestion  {arguments.question}\nanswer    {answer.text}")
            print_timings(answer)
            return
        with resources.as_file(resources.files("sightline.data") / FOLDER) as folder:
            wrong = sum(not _ask(llm, folder, one) for one in json.loads((folder / "questions.json").read_text()))
    if wrong:
        sys.exit(f"{wrong} of the answers above are wrong.")
    print(f"\nThat model reads drawn scenes like these and knows nothing else. What to type next:\n{_next_steps()}")


def _next_steps() -> str:
    program = _program()
    steps = {
        f"{program} serve": "the same model, with a page to try it on http://127.0.0.1:8000",
        f"{program} serve Qwen/Qwen3-VL-2B-Instruct": "a model that knows the world, from the Hugging Face Hub (4 GB)",
        f'{program} ask "What is this?" --image photo.jpg --model Qwen/Qwen3-VL-2B-Instruct': "one answer, without a server",
        f"{program} doctor": "what this machine has, and what is missing",
    }
    return "\n".join(f"  {command}\n      {what}" for command, what in steps.items())


def _program() -> str:
    """How this command can be typed again: by its name if the shell finds it, else as this process was started."""
    found = shutil.which("sightline")
    started = Path(sys.argv[0])
    if found is not None and started.exists() and Path(found).resolve() == started.resolve():
        return "sightline"
    if started.name == "sightline" and started.is_relative_to(Path.cwd()):
        return str(started.relative_to(Path.cwd()))
    return str(started) if started.name == "sightline" else f"{Path(sys.executable).name} -m sightline"


def _ask(llm: Any, folder: Path, asked: dict[str, Any]) -> bool:
    """Prints a picture's name, the question, the answer and how long it took; says whether it is right."""
    images, videos = ([str(folder / name) for name in asked[kind]] for kind in ("images", "videos"))
    start = time.perf_counter()
    answer = llm.chat([user_message(asked["question"], images, videos)], SamplingParams(max_tokens=48))
    took = time.perf_counter() - start
    right = bool(answer.text.strip() == asked["answer"])
    print()
    print(f"picture   {', '.join(asked['images'] + asked['videos'])}")
    print(f"question  {asked['question']}")
    print(f"answer    {answer.text}" + ("" if right else f"   (wrong: it is {asked['answer']})"))
    print(f"time      {took:.2f} s, {answer.prompt_tokens} tokens in, {len(answer.token_ids)} out")
    return right
