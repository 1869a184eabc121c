"""`sightline serve`: an OpenAI-compatible server."""

import argparse
import dataclasses
import difflib
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sightline.child_process import die_with_parent
from sightline.cli import vllm_flags
from sightline.cli.flags import Parser, add_config_flags, add_flags, config_from_flags, from_flags
from sightline.cli.keys import with_keys
from sightline.cli.sglang_flags import OTHERS as SGLANG_OTHERS
from sightline.cli.sglang_flags import add_sglang_flags
from sightline.config import Config, MediaConfig, ServerConfig
from sightline.errors import ConfigError
from sightline.parallel.launch import Launch

OTHERS = {**vllm_flags.OTHERS, **SGLANG_OTHERS}


def add_command(commands: Any) -> None:
    parser = commands.add_parser("serve", help="serve a model with an OpenAI-compatible API")
    parser.add_argument("served", nargs="?", metavar="MODEL", help="checkpoint folder or Hub id; by default the embedded model")
    parser.add_argument("--config", type=Path, metavar="FILE", help="YAML with options by name; the command line wins")
    _add_options(parser)
    parser.set_defaults(run=run, subparser=parser)


def _add_options(parser: Parser) -> None:
    parser.others = OTHERS
    add_flags(parser, ServerConfig)
    add_config_flags(parser)
    add_sglang_flags(parser)


def run(arguments: argparse.Namespace) -> int:
    launch = Launch.read(os.environ)
    if launch is not None and launch.rank > 0:
        from sightline.engine.launched import hold_rank

        return hold_rank(launch)
    from sightline.server.serve import serve

    config = serve_config(arguments)
    if launch is not None:
        config = launch.applied_to(config)
        die_with_parent()
    return serve(config)


def serve_config(arguments: argparse.Namespace) -> Config:
    """The configuration of the command line, and of the file that it names."""
    given = argparse.Namespace(**vars(arguments))
    if arguments.config is not None:
        given = argparse.Namespace(**{**vars(_read_file(arguments.config)), **vars(arguments)})
    if arguments.served is not None:
        if "model" in vars(arguments):
            raise ConfigError(f"The model is named twice: {arguments.served!r} and --model {arguments.model!r}.")
        given.model = arguments.served
    config = config_from_flags(given)
    media = {field.name: getattr(config.media, field.name) for field in dataclasses.fields(MediaConfig)}
    if "allowed_local_media_path" not in vars(given):
        del media["allowed_local_media_path"]  # strangers write the requests: no local files unless a folder is named
    return dataclasses.replace(config, media=MediaConfig.for_server(**media), server=with_keys(from_flags(ServerConfig, given)))


def _read_file(path: Path) -> argparse.Namespace:
    """Options of a YAML file, checked as if they stood on the command line."""
    import yaml

    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"The config file {path} cannot be read: {error}.") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"The config file {path} is not YAML: {' '.join(str(error).split())}.") from None
    if content is None:
        content = {}
    if not isinstance(content, dict):
        raise ConfigError(f"The config file {path} must hold names and values, not a {type(content).__name__}.")
    return _parse_options(content, f"The config file {path}", f"sightline serve --config {path}")


def config_of_options(options: Mapping[str, Any], what: str) -> Config:
    """The configuration of options by name, as a config file has them. `what` has them, for sentences about mistakes."""
    return serve_config(argparse.Namespace(**vars(_parse_options(options, what, what)), config=None, served=None))


def _parse_options(options: Mapping[str, Any], what: str, program: str) -> argparse.Namespace:
    parser = Parser(prog=program, add_help=False)
    _add_options(parser)
    flags_known = {flag: action for action in parser._actions for flag in action.option_strings}
    known = {_setting(flag): action for flag, action in flags_known.items() if not flag.startswith("--no-")}
    flags: list[str] = []
    for name, value in options.items():
        setting = _setting(str(name))
        if setting not in known:
            raise ConfigError(f"{what} has an option {str(name)!r} that does not exist{_hint(setting, known)}")
        flags += _flags(setting, value, known[setting], what)
    return parser.parse(flags)


def _setting(flag: str) -> str:
    return flag.removeprefix("--").replace("-", "_")


def _flag(setting: str) -> str:
    return "--" + setting.replace("_", "-")


def _hint(setting: str, known: Iterable[str]) -> str:
    if _flag(setting) in OTHERS:
        return f"; {OTHERS[_flag(setting)]}."
    close = difflib.get_close_matches(setting, list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else "."


def _flags(name: str, value: Any, action: argparse.Action, what: str) -> Sequence[str]:
    flag = _flag(name)
    if value is None:
        return []
    if action.nargs == 0:  # a switch
        if not isinstance(value, bool):
            raise ConfigError(f"{what} has {name} = {value!r}, but it must be true or false.")
        off = _flag(f"no_{name}")
        return [flag] if value else [off] if off in action.option_strings else []
    if isinstance(value, list):
        return [flag, *(str(item) for item in value)]
    if isinstance(value, dict):
        import json

        return [f"{flag}={json.dumps(value)}"]
    return [f"{flag}={value}"]
