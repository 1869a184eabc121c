"""`sightline doctor`: what this machine has, what would run on it, and what is missing."""

import argparse
import dataclasses
import json
from typing import Any


def add_command(commands: Any) -> None:
    parser = commands.add_parser("doctor", help="tell GPU, torch, attention, decoders and which operations would run here")
    parser.add_argument("--json", action="store_true", help="as JSON, for programs")
    parser.set_defaults(run=run, subparser=parser)


def run(arguments: argparse.Namespace) -> int:
    """Exit code 1 if something does not work."""
    from sightline.cli.doctor_checks import examine

    report = examine()
    if arguments.json:
        print(json.dumps(dataclasses.asdict(report), indent=2))
    else:
        _print(report)
    return 1 if report.problems else 0


def _print(report: Any) -> None:
    for section, facts in report.sections.items():
        print(section)
        width = max((len(name) for name in facts), default=0)
        for name, fact in facts.items():
            print(f"  {name:{width}}  {fact}")
        print()
    for title, sentences in (("warning", report.warnings), ("problem", report.problems)):
        for sentence in sentences:
            print(f"{title}: {sentence}")
    print("Something does not work." if report.problems else "All that is needed works.")
