"""One line of JSON per request on standard output: what it was and what it took, and its content only if asked for."""

import datetime
import sys
from collections.abc import Callable, Mapping

import msgspec

from sightline.server.observer import RequestRecord


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


def request_log(enabled: bool) -> Callable[[RequestRecord, Mapping[str, object]], None]:
    return write_line if enabled else lambda record, content: None
