"""One line of JSON per request on standard output: what it was and what it took, and its content only if asked for."""

import contextlib
import datetime
import queue
import sys
import threading
from collections.abc import Mapping
from typing import Any

import msgspec

from sightline.server.observer import RequestRecord

_MOST_WAITING = 10_000  # lines; those beyond are dropped
_LONGEST = 2000  # characters of a text in a log with content
_DEEPEST = 100  # levels of what is logged with content


class RequestLog:
    """Lines are written by a thread: a reader of our output that is slow, or gone, must not hold up requests."""

    def __init__(self) -> None:
        self._lines: queue.Queue[bytes | None] = queue.Queue(_MOST_WAITING)
        self._thread = threading.Thread(target=self._write, name="request-log", daemon=True)
        self._thread.start()

    def __call__(self, record: RequestRecord, content: Mapping[str, object]) -> None:
        with contextlib.suppress(queue.Full):
            self._lines.put_nowait(line_of(record, content))

    def close(self, patience_s: float = 1.0) -> None:
        """Waits a moment for lines to be written."""
        with contextlib.suppress(queue.Full):
            self._lines.put_nowait(None)
        self._thread.join(patience_s)

    def _write(self) -> None:
        while (line := self._lines.get()) is not None:
            try:
                sys.stdout.buffer.write(line)
                sys.stdout.buffer.flush()
            except (OSError, ValueError):  # nobody reads it any more
                return


def line_of(record: RequestRecord, content: Mapping[str, object]) -> bytes:
    line: dict[str, object] = {"time": datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")}
    for name, value in msgspec.to_builtins(record).items():
        if name in ("seconds", "first_token_s") and value is not None:
            line[name.removesuffix("_s").replace("seconds", "e2e") + "_ms"] = round(1000 * value, 1)
        elif name == "stages":
            line["stages_ms"] = {stage: round(1000 * seconds, 1) for stage, seconds in value.items()}
        elif value is not None:
            line[name] = value
    return msgspec.json.encode({**line, **content}) + b"\n"


def loggable(body: Any, depth: int = 0) -> Any:
    """The body of a request without what was not given, and without most of what is long or deep, such as media."""
    if depth > _DEEPEST:
        return "…"
    plain = msgspec.to_builtins(body) if isinstance(body, msgspec.Struct) else body
    if isinstance(plain, dict):
        return {name: loggable(value, depth + 1) for name, value in plain.items() if value is not None}
    if isinstance(plain, list):
        return [loggable(value, depth + 1) for value in plain]
    if isinstance(plain, str) and len(plain) > _LONGEST:
        return f"{plain[:_LONGEST]}… ({len(plain):,} characters)"
    return plain
