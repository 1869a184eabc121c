"""`sightline eval`: how often a model is right, by tasks whose answers are known."""

import argparse
import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sightline.cli.bench import command, keep
from sightline.cli.flags import add_config_flags, config_from_flags
from sightline.config import Config

if TYPE_CHECKING:
    from sightline.llm import LLM


def add_command(commands: Any) -> None:
    parser = commands.add_parser("eval", help="measure how often a model is right")
    actions = parser.add_subparsers(title="tasks", metavar="TASK", required=True, parser_class=type(parser))
    signs = actions.add_parser("signs", help="signs, shapes, charts and clips drawn from held-out seeds with held-out fonts")
    signs.add_argument("--samples", type=int, default=100, metavar="N", help="examples per skill (default: 100)")
    signs.add_argument("--skills", nargs="+", metavar="SKILL", help="which skills (default: all)")
    signs.add_argument(
        "--seed", dest="first_seed", type=int, default=0, metavar="N", help="seed of the first example (default: 0)"
    )
    signs.add_argument("--batch", type=int, default=64, metavar="N", help="most questions asked at once (default: 64)")
    signs.add_argument("--json", type=Path, metavar="FILE", help="where to keep the scores and failures")
    signs.add_argument("--samples-out", type=Path, metavar="FILE", help="where to keep each question and answer, as JSON lines")
    signs.add_argument(
        "--optimisations", action="store_true", help="ask again with each optimisation switched off, and compare"
    )
    add_config_flags(signs, without=("seed",))
    signs.set_defaults(run=run_signs, subparser=signs)


def run_signs(arguments: argparse.Namespace) -> None:
    from sightline.evals.signs.evaluate import HEADER, as_json, evaluate, failure_lines, sample_records, table_line
    from sightline.evals.signs.generate import SKILL_NAMES
    from sightline.llm import LLM

    config = config_from_flags(arguments)
    skills = arguments.skills or SKILL_NAMES
    if arguments.optimisations:
        run_optimisations(arguments, config, skills)
        return
    with LLM(config.model.model, config) as llm:
        note_resizing(llm)
        print(HEADER)
        result = evaluate(
            llm,
            arguments.samples,
            skills,
            arguments.first_seed,
            arguments.batch,
            told=lambda score: print(table_line(score), flush=True),
        )
        about = about_run(llm)
    if lines := failure_lines(result):
        print("\nWhat failed:", *lines, sep="\n")
    if arguments.json is not None:
        keep(arguments.json, {**about, **as_json(result)})
    if arguments.samples_out is not None:
        arguments.samples_out.parent.mkdir(parents=True, exist_ok=True)
        with arguments.samples_out.open("w", encoding="utf-8") as file:
            for record in sample_records(result):
                file.write(json.dumps(record, ensure_ascii=False) + "\n")


def run_optimisations(arguments: argparse.Namespace, config: Config, skills: Sequence[str]) -> None:
    from sightline.evals.signs.evaluate import evaluate
    from sightline.evals.signs.optimisations import OPTIMISATIONS, Variant, as_json, table
    from sightline.llm import LLM

    variants = []
    for name, settings in OPTIMISATIONS:
        chosen = dataclasses.replace(config, engine=dataclasses.replace(config.engine, **settings))
        with LLM(config.model.model, chosen) as llm:
            found = evaluate(llm, arguments.samples, skills, arguments.first_seed, arguments.batch)
            about = about_run(llm)
        variants.append(Variant(name, settings, found))
        print(f"{name}: done", flush=True)
    print("", *table(variants), sep="\n")
    if arguments.json is not None:
        keep(arguments.json, {**about, **as_json(variants)})


def about_run(llm: "LLM") -> dict[str, object]:
    return {
        "model": llm.config.model.model or "the embedded one",
        "device": str(llm.device),
        "dtype": str(llm.dtype),
        "command": command(),
    }


def note_resizing(llm: "LLM") -> None:
    """Says so if the model does not see the pictures as they are drawn: it may still be right, but the score is about less."""
    from sightline.evals.signs.seen import changes

    for change in changes(llm.processor):
        print(f"Note: {change}")
