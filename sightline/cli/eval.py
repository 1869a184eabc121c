"""`sightline eval`: how often a model is right, by tasks whose answers are known, and whether two runs agree."""

import argparse
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sightline.cli.eval_run import about_run, add_run_options, run_and_report
from sightline.cli.flags import config_from_flags
from sightline.cli.kept_figures import keep
from sightline.config import Config
from sightline.errors import ConfigError

if TYPE_CHECKING:
    from sightline.llm import LLM

_PUBLISHED = {
    "mmmu": "college questions of thirty subjects with images among the text",
    "ocrbench": "reading text, from words to receipts and formulas",
    "docvqa": "questions about scanned pages",
    "chartqa": "questions about charts",
}


def add_command(commands: Any) -> None:
    parser = commands.add_parser("eval", help="measure how often a model is right")
    actions = parser.add_subparsers(title="tasks", metavar="TASK", required=True, parser_class=type(parser))
    for name, what in _PUBLISHED.items():
        _add_published(actions, name, what)
    _add_signs(actions)
    _add_agree(actions)


def _add_published(actions: Any, name: str, what: str) -> None:
    task = actions.add_parser(name, help=what)
    task.add_argument(
        "--data", type=Path, metavar="FOLDER", help="the published dataset, or one file of it (default: the Hugging Face cache)"
    )
    task.add_argument("--split", metavar="NAME", help="which split (default: the one that scores are published for)")
    task.add_argument("--samples", type=int, metavar="N", help="ask only N samples, evenly spread (default: all)")
    task.add_argument("--groups", nargs="+", default=[], metavar="NAME", help="ask only these rows of the table, e.g. Math")
    add_run_options(task)
    task.set_defaults(run=run_published, benchmark=name, subparser=task)


def _add_signs(actions: Any) -> None:
    signs = actions.add_parser("signs", help="signs, shapes, charts and clips drawn from held-out seeds with held-out fonts")
    signs.add_argument("--samples", type=int, default=100, metavar="N", help="examples per skill (default: 100)")
    signs.add_argument("--skills", nargs="+", metavar="SKILL", help="which skills (default: all)")
    signs.add_argument(
        "--seed", dest="first_seed", type=int, default=0, metavar="N", help="seed of the first example (default: 0)"
    )
    signs.add_argument(
        "--optimisations", action="store_true", help="ask again with each optimisation switched off, and compare"
    )
    add_run_options(signs, without=("seed",))
    signs.set_defaults(run=run_signs, subparser=signs)


def _add_agree(actions: Any) -> None:
    agree = actions.add_parser("agree", help="whether two runs of a task answered alike, from their files of samples")
    agree.add_argument("a", type=Path, metavar="A", help="what --samples-out wrote in one run")
    agree.add_argument("b", type=Path, metavar="B", help="and in the other")
    agree.add_argument(
        "--fail-below", type=float, metavar="X", help="end with code 1 if a smaller share of samples agrees, e.g. 0.995"
    )
    agree.add_argument(
        "--on", choices=("answers", "scores"), default="answers", help="what has to agree for that (default: answers)"
    )
    agree.add_argument("--json", type=Path, metavar="FILE", help="where to keep the figures and the samples that differ")
    agree.set_defaults(run=run_agree, subparser=agree)


def run_published(arguments: argparse.Namespace) -> int:
    from sightline.evals.benchmarks.all import BENCHMARKS
    from sightline.evals.benchmarks.published import load_benchmark

    benchmark = BENCHMARKS[arguments.benchmark]
    task = load_benchmark(benchmark, arguments.data, arguments.split, arguments.samples, arguments.groups)
    return run_and_report(arguments, task).code


def run_signs(arguments: argparse.Namespace) -> int:
    from sightline.evals.signs.evaluate import as_json, failure_lines
    from sightline.evals.signs.generate import SKILL_NAMES
    from sightline.evals.signs.task import as_evaluation, signs_task

    skills = arguments.skills or SKILL_NAMES
    if arguments.optimisations:
        if arguments.base_url is not None:
            raise ConfigError("--optimisations are switched in this process, so --base-url means nothing.")
        run_optimisations(arguments, config_from_flags(arguments), skills)
        return 0
    task = signs_task(arguments.samples, skills, arguments.first_seed)
    done = run_and_report(arguments, task, note_resizing)
    result = as_evaluation(done.judged, arguments.samples, arguments.first_seed)
    if lines := failure_lines(result):
        print("\nWhat failed:", *lines, sep="\n")
    if arguments.json is not None:
        keep(arguments.json, {**done.summary["answerer"], **done.summary, **as_json(result)})
    return done.code


def run_optimisations(arguments: argparse.Namespace, config: Config, skills: Sequence[str]) -> None:
    from sightline.evals.in_process import InProcess
    from sightline.evals.signs.evaluate import evaluate
    from sightline.evals.signs.optimisations import OPTIMISATIONS, Variant, as_json, table
    from sightline.llm import LLM

    variants = []
    for name, settings in OPTIMISATIONS:
        chosen = dataclasses.replace(config, engine=dataclasses.replace(config.engine, **settings))
        with LLM(config.model.model, chosen) as llm:
            found = evaluate(llm, arguments.samples, skills, arguments.first_seed, arguments.concurrency)
            who = InProcess(llm).about
        variants.append(Variant(name, settings, found))
        print(f"{name}: done", flush=True)
    print("", *table(variants), sep="\n")
    if arguments.json is not None:
        who = {name: who[name] for name in ("model", "device", "dtype")}
        keep(arguments.json, {**who, **about_run(), **as_json(variants)})


def note_resizing(llm: "LLM") -> None:
    """Says so if the model does not see the pictures as they are drawn: it may still be right, but the score is about less."""
    from sightline.evals.signs.seen import changes

    for change in changes(llm.processor):
        print(f"Note: {change}")


def run_agree(arguments: argparse.Namespace) -> int:
    from sightline.evals.agreement import as_json, compare, table
    from sightline.evals.sample_file import read_sample_file

    if arguments.fail_below is not None and not 0 <= arguments.fail_below <= 1:
        raise ConfigError(f"--fail-below is {arguments.fail_below:g}, but must be between 0 and 1.")
    a, b = read_sample_file(arguments.a), read_sample_file(arguments.b)
    agreement = compare(a, b)
    for name, file in (("A", a), ("B", b)):
        print(f"{name}  {file.path}: " + ", ".join(f"{key} {value}" for key, value in file.answerer.items() if value))
    for name, count in (("A", agreement.only_a), ("B", agreement.only_b)):
        if count:
            print(f"Note: {count} samples are finished in {name} only and left out.")
    print(f"\n{a.settings['task']}, {a.settings.get('split')}", *table(agreement), sep="\n")
    overall = agreement.overall
    print(
        f"\n{overall.n - overall.same_answer} of {overall.n} answers differ, {overall.a_better + overall.b_better} are scored "
        f"differently. B scores {overall.b_score - overall.a_score:+.2%} ± {overall.difference_error:.2%} (standard error) "
        f"against A; two-sided exact sign test (McNemar's for right and wrong): p = {overall.p_value:.3g}."
    )
    if arguments.json is not None:
        keep(arguments.json, as_json(agreement, a, b))
    share = overall.answer_share if arguments.on == "answers" else overall.score_share
    if arguments.fail_below is not None and share < arguments.fail_below:
        print(f"The same {arguments.on} have {share:.2%}, less than --fail-below {arguments.fail_below:.2%}.")
        return 1
    return 0
