"""One description of a benchmark: its flags, what it runs and prints, and its results, which are kept in one form for all."""

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sightline.bench.summary import add_to_summary, commit
from sightline.cli.flags import Parser
from sightline.cli.kept_figures import command, keep
from sightline.errors import UserError


@dataclass(frozen=True)
class Results:
    device: str
    fields: Mapping[str, object]  # of the JSON file, behind which benchmark, command, commit and device it is
    figures: Mapping[str, float] = field(default_factory=dict)  # for summary.json, by key
    code: int = 0  # how the process ends


@dataclass(frozen=True)
class Benchmark:
    name: str
    about: str
    add_flags: Callable[[Parser], None]
    run: Callable[[argparse.Namespace], Results | int]  # a code from one that keeps its results itself, as they come
    description: str | None = None  # longer than `about`

    def main(self, words: Sequence[str] | None = None) -> int:
        """Measures, prints, and keeps what --json and --summary ask for. The exit code."""
        program = f"python -m benchmarks.{self.name}"
        parser = Parser(prog=program, description=self.description or self.about)
        kept = parser.add_argument_group("results")
        kept.add_argument("--json", type=Path, metavar="FILE", help="where to keep the figures")
        kept.add_argument("--summary", type=Path, metavar="FILE", help="summary.json to add the figures to")
        self.add_flags(parser)
        parser.set_defaults(subparser=parser)
        arguments = parser.parse(words)
        try:
            results = self.run(arguments)
        except UserError as error:
            print(f"{program}: {error}", file=sys.stderr)
            return 1
        except BrokenPipeError:  # the reader of our output went away, e.g. `| head`
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 1
        if isinstance(results, int):
            return results
        line = command(program)
        if arguments.json is not None:
            about = {"benchmark": self.name, "command": line, "commit": commit(), "device": results.device}
            keep(arguments.json, {**about, **results.fields})
        if arguments.summary is not None and results.figures:
            add_to_summary(arguments.summary, results.figures, line, results.device)
        return results.code
