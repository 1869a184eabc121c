"""Command-line flags from the configuration dataclasses: one group per dataclass, one flag per field."""

import argparse
import dataclasses
import difflib
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, TypeVar

from sightline.config import Config, EncoderConfig, EngineConfig, MediaConfig, ModelConfig

T = TypeVar("T")


class Parser(argparse.ArgumentParser):
    """argparse that answers a mistake with one sentence and suggests the flag that was probably meant.

    `others` says what to use instead of flags that other programs have.
    """

    others: Mapping[str, str] = types.MappingProxyType({})

    def error(self, message: str) -> NoReturn:
        words = message.removeprefix("unrecognized arguments: ").split() if message.startswith("unrecognized") else []
        flag = next((word.split("=")[0] for word in words if word.startswith("--")), None)
        if flag is not None:
            known = [option for action in self._actions for option in action.option_strings]
            close = difflib.get_close_matches(flag, known, n=1)
            hint = self.others.get(flag) or (f"did you mean {close[0]}?" if close else "")
            message = f"there is no option {flag}" + (f"; {hint}" if hint else "")
        self.exit(2, f"{self.prog}: {message.rstrip('.?')}{'?' if message.endswith('?') else '.'}\n")

    def parse(self, arguments: Sequence[str] | None) -> argparse.Namespace:
        """As parse_args, but unknown options are reported by the subcommand that was meant, which knows the right ones."""
        known, unknown = self.parse_known_args(arguments)
        if unknown:
            getattr(known, "subparser", self).error("unrecognized arguments: " + " ".join(unknown))
        return known


def add_flags(parser: argparse.ArgumentParser, kind: type, without: Sequence[str] = ()) -> None:
    """A group with a flag for each field of a dataclass. A flag that is not given leaves no trace in the result."""
    group = parser.add_argument_group((kind.__doc__ or kind.__name__).strip().split("\n")[0].rstrip("."))
    hints = typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):
        if field.name in without:
            continue
        hidden = field.default in (None, "", ()) or not field.metadata["show_default"]
        shown = "" if hidden else f" (default: {field.default})"
        options: dict[str, Any] = {"dest": field.name, "default": argparse.SUPPRESS, "help": field.metadata["doc"] + shown}
        group.add_argument(_flag(field.name), **options, **kind_of(hints[field.name]))
        if field.metadata["old_name"] is not None:
            group.add_argument(
                _flag(field.metadata["old_name"]), **{**options, "help": argparse.SUPPRESS}, **kind_of(hints[field.name])
            )


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def kind_of(hint: Any) -> dict[str, Any]:
    """argparse's keywords for a field's type."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        hint = next(option for option in typing.get_args(hint) if option is not type(None))
    if hint is bool:
        return {"action": argparse.BooleanOptionalAction}
    if typing.get_origin(hint) is typing.Literal:
        return {"choices": typing.get_args(hint)}
    if typing.get_origin(hint) is tuple:
        return {"nargs": "*", "action": "extend", "type": typing.get_args(hint)[0], "metavar": "VALUE"}
    return {"type": hint, "metavar": {int: "N", float: "X"}.get(hint, "TEXT")}


def from_flags(kind: type[T], arguments: argparse.Namespace) -> T:
    """The dataclass with what the command line gave; fields that were not given keep their defaults."""
    fields = {field.name for field in dataclasses.fields(typing.cast(Any, kind))}
    given = {name: value for name, value in vars(arguments).items() if name in fields}
    return kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in given.items()})


def add_config_flags(parser: argparse.ArgumentParser, without: Sequence[str] = ()) -> None:
    """Flags for every setting but those named."""
    for kind in (ModelConfig, EngineConfig, EncoderConfig, MediaConfig):
        add_flags(parser, kind, without)


def config_from_flags(arguments: argparse.Namespace) -> Config:
    return Config(
        model=from_flags(ModelConfig, arguments),
        media=from_flags(MediaConfig, arguments),
        engine=from_flags(EngineConfig, arguments),
        encoder=from_flags(EncoderConfig, arguments),
    )
