"""The `sightline` command. Each subcommand is a file; what a user got wrong becomes one sentence and exit code 1."""

import os
import sys
from collections.abc import Sequence

from sightline import __version__
from sightline.cli import ask, batch, bench, completion, demo, doctor, eval, model, serve, tune
from sightline.cli.flags import Parser
from sightline.errors import UserError


def make_parser() -> Parser:
    parser = Parser(prog="sightline", description="Serve and ask vision-language models.")
    parser.add_argument("--version", action="version", version=f"sightline {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", parser_class=Parser)
    for module in (demo, ask, serve, batch, model, bench, eval, tune, doctor, completion):
        module.add_command(commands)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    parser = make_parser()
    parsed = parser.parse(arguments)
    if "run" not in parsed:  # no command
        parser.print_help()
        return 0
    try:
        code: int | None = parsed.run(parsed)
    except UserError as error:
        print(f"sightline: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader of our output went away, e.g. `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return code or 0


if __name__ == "__main__":
    sys.exit(main())
