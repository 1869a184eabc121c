"""What commands that measure keep: figures as JSON, and the command line that made them."""

import json
import shlex
import sys
from pathlib import Path

_PRIVATE = ("--api-key", "--admin-api-key", "--header", "--base-url", "--host")  # flags whose values are kept nowhere


def command(program: str = "sightline") -> str:
    """The command line, so that figures can be made again; keys, hosts and folders of this machine are left out of it."""
    words = []
    private = False
    for word in sys.argv[1:]:
        flag, equals, _ = word.partition("=")
        if word.startswith("--"):
            private = len(flag) > 3 and any(known.startswith(flag) for known in _PRIVATE)
            words.append(flag + "=..." if private and equals else _without_folders(word))
        else:
            words.append("..." if private else _without_folders(word))
    return f"{program} {shlex.join(words)}"


def _without_folders(word: str) -> str:
    """Paths below the current folder are told from there, others by their last part."""
    flag, equals, value = word.partition("=") if word.startswith("--") else ("", "", word)
    path = Path(value)
    if not path.is_absolute():
        return word
    here = Path.cwd()
    return flag + equals + (str(path.relative_to(here)) if path.is_relative_to(here) else path.name)


def keep(path: Path, figures: dict[str, object]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
