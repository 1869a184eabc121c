"""One line of JSON per request on standard output: what it was and what it took, and its content only if asked for."""

import datetime
import sys
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from sightline.server.observer import RequestRecord

_LONGEST = 2000  # characters of a text in a log with content


def write_line(record: RequestRecord, content: Mapping[str, object]) -> None:
    line: dict[str, object] = {"time": datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")}
    for name, value in msgspec.to_builtins(record).items():
        if name in ("seconds", "first_token_s") and value is not None:
            line[name.removesuffix("_s").replace("seconds", "e2e") + "_ms"] = round(1000 * value, 1)
        elif name == "stages":
            line["stages_ms"] = {stage: round(1000 * seconds, 1) for stage, seconds in value.items()}
        elif value is not None:
            line[name] = value
    sys.stdout.buffer.write(msgspec.json.encode({**line, **content}) + b"\n")
    sys.stdout.buffer.flush()


def loggable(body: Any) -> Any:
    """The body of a request without what was not given, and without most of what is long, such as media."""
    plain = msgspec.to_builtins(body) if isinstance(body, msgspec.Struct) else body
    if isinstance(plain, dict):
        return {name: loggable(value) for name, value in plain.items() if value is not None}
    if isinstance(plain, list):
        return [loggable(value) for value in plain]
    if isinstance(plain, str) and len(plain) > _LONGEST:
        return f"{plain[:_LONGEST]}… ({len(plain):,} characters)"
    return plain


def request_log(enabled: bool) -> Callable[[RequestRecord, Mapping[str, object]], None]:
    return write_line if enabled else lambda record, content: None
