"""API keys from files and from the environment: those on a command line can be read by every user of the machine."""

import dataclasses
import os
from pathlib import Path

from sightline.config import ServerConfig
from sightline.errors import ConfigError

_OWN = "SIGHTLINE_API_KEY"


def with_keys(server: ServerConfig) -> ServerConfig:
    """With the keys of the file; where neither flag nor file has one, with that of the environment."""
    found = server.api_key
    if server.api_key_file is not None:
        found += _keys_in(Path(server.api_key_file))
    elif not found and _OWN in os.environ:
        if not os.environ[_OWN].strip():
            raise ConfigError(f"{_OWN} of the environment is empty: whoever sends no key would have it.")
        found = (os.environ[_OWN].strip(),)
    return dataclasses.replace(server, api_key=found)


def key_to_ask_with() -> str | None:
    """The key of the environment for commands that ask a server."""
    return (os.environ.get(_OWN) or os.environ.get("OPENAI_API_KEY") or "").strip() or None


def _keys_in(file: Path) -> tuple[str, ...]:
    try:
        lines = [line.strip() for line in file.read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text in UTF-8"
        raise ConfigError(f"api_key_file {str(file)!r} cannot be read: {reason}.") from None
    keys = tuple(line for line in lines if line and not line.startswith("#"))
    if not keys:
        raise ConfigError(f"api_key_file {str(file)!r} has no key.")
    return keys
