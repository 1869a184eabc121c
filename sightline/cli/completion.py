"""`sightline completion`: a script with which a shell completes commands, flags and choices, made from the parser itself."""

import argparse
import shlex
from collections.abc import Iterator
from typing import Any

from sightline.cli.flags import Parser

Commands = dict[str, tuple[list[str], dict[str, list[str]]]]  # "bench serve" → subcommands and flags, of each flag its choices


def add_command(commands: Any) -> None:
    parser = commands.add_parser("completion", help="print a script that completes commands and flags in a shell")
    parser.add_argument("shell", choices=tuple(_SCRIPTS), help="e.g. source <(sightline completion bash)")
    parser.set_defaults(run=run, subparser=parser)


def run(arguments: argparse.Namespace) -> None:
    from sightline.cli.main import make_parser

    print(_SCRIPTS[arguments.shell](dict(_walk(make_parser(), ""))), end="")


def _walk(parser: argparse.ArgumentParser, path: str) -> Iterator[tuple[str, tuple[list[str], dict[str, list[str]]]]]:
    """Each command with what may follow it. Flags that help does not show are not offered."""
    words: list[str] = []
    flags: dict[str, list[str]] = {}
    below: list[tuple[str, argparse.ArgumentParser]] = []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            words += action.choices
            below += action.choices.items()
        elif not action.option_strings:
            words += [str(choice) for choice in action.choices or ()]
        elif action.help is not argparse.SUPPRESS:
            choices = [str(choice) for choice in action.choices or ()]
            flags |= {flag: choices for flag in action.option_strings if flag.startswith("--")}
    yield path, (words, flags)
    for name, child in below:
        assert isinstance(child, Parser)
        yield from _walk(child, f"{path} {name}".strip())


def _bash(commands: Commands) -> str:
    """Commands are the words before the one to complete that begin with no dash, as far as they are commands."""
    return f"# bash completion of sightline: source <(sightline completion bash)\n{_function(commands)}"


def _zsh(commands: Commands) -> str:
    loaded = "autoload -U +X compinit bashcompinit && compinit && bashcompinit"
    return f"# zsh completion of sightline: source <(sightline completion zsh)\n{loaded}\n{_function(commands)}"


def _function(commands: Commands) -> str:
    lines = [
        "_sightline() {",
        '  local word="${COMP_WORDS[COMP_CWORD]}" before="${COMP_WORDS[COMP_CWORD-1]}" path="" next="" offered=""',
        '  for next in "${COMP_WORDS[@]:1:$((COMP_CWORD - 1))}"; do',
        '    case "${path:+$path }$next" in',
        f'      {" | ".join(shlex.quote(path) for path in commands if path)}) path="${{path:+$path }}$next" ;;',
        "    esac",
        "  done",
        '  case "$path" in',
    ]
    for path, (words, flags) in commands.items():
        lines.append(f"    {shlex.quote(path)}) offered={shlex.quote(' '.join([*words, *flags]))} ;;")
    lines += ["  esac", '  case "$path $before" in']
    for path, (_, flags) in commands.items():
        for flag, choices in flags.items():
            if choices:
                lines.append(f"    {shlex.quote(f'{path} {flag}')}) offered={shlex.quote(' '.join(choices))} ;;")
    lines += [
        "  esac",
        "  COMPREPLY=()",
        '  for next in $offered; do case "$next" in "$word"*) COMPREPLY+=("$next") ;; esac; done',
        "}",
        "complete -o default -F _sightline sightline",
        "",
    ]
    return "\n".join(lines)


def _fish(commands: Commands) -> str:
    lines = ["# fish completion of sightline: sightline completion fish | source", "complete -c sightline -f"]
    for path, (words, flags) in commands.items():
        seen = [f"__fish_seen_subcommand_from {word}" for word in path.split()]
        unseen = [f"not __fish_seen_subcommand_from {' '.join(words)}"] if words else []
        condition = shlex.quote("; and ".join([*seen, *unseen]) or "true")
        if words:
            lines.append(f"complete -c sightline -n {condition} -a {shlex.quote(' '.join(words))}")
        for flag, choices in flags.items():
            values = f" -xa {shlex.quote(' '.join(choices))}" if choices else ""
            lines.append(f"complete -c sightline -n {condition} -l {flag.removeprefix('--')}{values}")
    return "\n".join([*lines, ""])


_SCRIPTS = {"bash": _bash, "zsh": _zsh, "fish": _fish}
