"""What all tasks of `sightline eval` share: who answers, how many at once, where results go, and the report."""

import argparse
import dataclasses
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sightline.cli.flags import add_config_flags, config_from_flags
from sightline.cli.kept_figures import keep
from sightline.cli.keys import key_to_ask_with
from sightline.config import EngineConfig, MediaConfig, ModelConfig
from sightline.errors import ConfigError

if TYPE_CHECKING:
    from sightline.evals.answerer import Answerer
    from sightline.evals.run import Judged
    from sightline.evals.task import Task
    from sightline.llm import LLM


def add_run_options(parser: argparse.ArgumentParser, without: Sequence[str] = ()) -> None:
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to keep the scores")
    parser.add_argument(
        "--samples-out",
        type=Path,
        metavar="FILE",
        help="where to keep each question and answer, as JSON lines; if the file is there, its samples are not asked again",
    )
    parser.add_argument(
        "--concurrency", "--batch", type=int, default=64, metavar="N", help="most questions asked at once (default: 64)"
    )
    parser.add_argument("--max-tokens", type=int, metavar="N", help="longest answer (default: the task's)")
    parser.add_argument(
        "--extra-body",
        type=str,
        default="{}",
        metavar="JSON",
        help='more fields of requests, e.g. {"repetition_penalty": 1.0, "chat_template_kwargs": {"enable_thinking": false}}; '
        "null takes one away",
    )
    server = parser.add_argument_group("A server that answers, instead of a model in this process")
    server.add_argument("--base-url", metavar="URL", help="an OpenAI-compatible server, e.g. http://127.0.0.1:8000/v1")
    server.add_argument(
        "--api-key", metavar="KEY", help="its key (default: the environment's SIGHTLINE_API_KEY, OPENAI_API_KEY)"
    )
    server.add_argument("--served-model", metavar="NAME", help="the model to ask for (default: the only one that is served)")
    server.add_argument("--stream", action="store_true", help="ask for streams, as chat programs do; the answers are the same")
    server.add_argument("--timeout", type=float, default=600.0, metavar="S", help="most seconds for an answer (default: 600)")
    add_config_flags(parser, without)


@dataclass(frozen=True)
class EvalRun:
    judged: "Sequence[Judged]"
    summary: dict[str, Any]
    code: int  # to exit with


def run_and_report(
    arguments: argparse.Namespace, task: "Task", with_llm: "Callable[[LLM], None]" = lambda llm: None
) -> EvalRun:
    """Asks, prints the table, keeps what was asked to be kept. `with_llm` gets the model if it runs in this process."""
    from sightline.evals.answerer import AnswererGone
    from sightline.evals.report import failed, group_scores, remarks, summary, table, totals
    from sightline.evals.run import run_task, sampling_of
    from sightline.evals.sample_file import SampleWriter

    if arguments.max_tokens is not None and arguments.max_tokens < 1:
        raise ConfigError(f"--max-tokens is {arguments.max_tokens}, but must be at least 1.")
    sampling = sampling_of(task, arguments.max_tokens, _extra(arguments.extra_body))
    settings = {**task.settings, "sampling": sampling}
    answerer = make_answerer(arguments, with_llm)
    writer = None
    begun = time.monotonic()
    try:
        if arguments.samples_out is not None:
            writer = SampleWriter(arguments.samples_out, settings, answerer.about, about_run())
        with _EvalProgress(task.count) as told:
            judged = run_task(task, answerer, sampling, arguments.concurrency, writer, told)
    except KeyboardInterrupt:
        if writer is not None:
            print(
                f"Interrupted; finished samples are in {writer.path}, and the same command goes on from there.", file=sys.stderr
            )
        raise
    except AnswererGone as error:
        kept = f" Finished samples are in {writer.path}; the same command goes on from there." if writer else ""
        raise AnswererGone(f"{error}{kept}") from None
    finally:
        if writer is not None:
            writer.close()
        answerer.close()
    seconds = round(time.monotonic() - begun, 3)
    about = {**about_run(), "seconds": seconds}
    print(*table(group_scores(judged, task.group_order), task), sep="\n")
    print(totals(judged, seconds, len(writer.finished) if writer is not None else 0))
    for line in (*task.notes, *remarks(judged)):
        print(f"Note: {line}" if not line.startswith(" ") else line)
    figures = summary(task, judged, settings, answerer.about, about)
    if arguments.json is not None:
        keep(arguments.json, figures)
    return EvalRun(judged, figures, 1 if failed(judged) else 0)


def make_answerer(arguments: argparse.Namespace, with_llm: "Callable[[LLM], None]") -> "Answerer":
    if arguments.base_url is None:
        for name in ("api_key", "served_model", "stream"):
            if getattr(arguments, name):
                raise ConfigError(f"--{name.replace('_', '-')} means nothing without --base-url.")
        from sightline.evals.in_process import InProcess
        from sightline.llm import LLM

        config = config_from_flags(arguments)
        llm = LLM(config.model.model, config)
        with_llm(llm)
        return InProcess(llm)
    from sightline.evals.server import ServerAnswerer

    for kind in (ModelConfig, MediaConfig, EngineConfig):
        for field in dataclasses.fields(kind):
            if field.name in vars(arguments):
                flag = field.name.replace("_", "-")
                raise ConfigError(f"--{flag} is for a model in this process and means nothing with --base-url.")
    key = arguments.api_key or key_to_ask_with()
    return ServerAnswerer(arguments.base_url, arguments.served_model, key, arguments.timeout, stream=arguments.stream)


def about_run() -> dict[str, object]:
    return {"command": _command(sys.argv[1:])}


def _command(words: Sequence[str]) -> str:
    """The command line, so that figures can be made again, without the key."""
    shown = []
    for index, word in enumerate(words):
        if index and words[index - 1] == "--api-key":
            word = "…"
        elif word.startswith("--api-key="):
            word = "--api-key=…"
        shown.append(word)
    return " ".join(["sightline", *shown])


def _extra(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise ConfigError(f"--extra-body is {text!r}, but must be a JSON object.")
    return value


class _EvalProgress:
    """A bar on a terminal, with the score so far; nothing elsewhere."""

    def __init__(self, total: int | None) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

        console = Console(stderr=True)
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("samples", total=total)
        self._points, self._count = 0.0, 0

    def __enter__(self) -> "Callable[[Judged], None]":
        self._bar.start()
        return self._advance

    def _advance(self, judged: "Judged") -> None:
        self._points, self._count = self._points + judged.score, self._count + 1
        self._bar.update(self._task, advance=1, description=f"samples, {self._points / self._count:.1%} so far")

    def __exit__(self, *_: object) -> None:
        self._bar.stop()
