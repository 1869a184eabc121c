"""The real API process with an instant engine, which writes down where each request's time went, as a line of JSON.

`python -m benchmarks.measure.timed_server FILE KNOWN STEP_MS MODEL KEPT_MEDIA_MB`; with KNOWN 0 no file counts as known.

    read      from the headers to the whole body
    parse     JSON, and finding data URLs in it; joining the body's parts before that
    base64    data URLs to bytes
    known     whether these bytes came before, by comparing
    digest    of those that did not
    header    format, size, limits
    prompt    template, token ids, positions
    send      the request as frames to the engine process
    other     all else up to then

Times are those on the clock, of one request at a time.
"""

import functools
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sightline.bench import instant_server
from sightline.media import source
from sightline.media.digests import Digester
from sightline.server import body, body_files, chat_prompt, generation
from sightline.server.engine_client import EngineClient

STAGES = ("read", "parse", "base64", "known", "digest", "header", "prompt", "send", "other")


class Stopwatch:
    """Stages of the request at hand. A stage inside another is not counted twice."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._spent: dict[str, float] = {}
        self._inside: list[float] = []  # of each stage that is open, what stages inside it took
        self._began: float | None = None

    def begin(self) -> None:
        self._spent, self._began = {}, time.perf_counter()

    def timed(self, stage: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapped(*arguments: Any, **named: Any) -> Any:
            start = time.perf_counter()
            self._inside.append(0.0)
            try:
                return function(*arguments, **named)
            finally:
                taken = time.perf_counter() - start
                self._spent[stage] = self._spent.get(stage, 0.0) + taken - self._inside.pop()
                if self._inside:
                    self._inside[-1] += taken

        return wrapped

    def reading(self, function: Callable[..., Any]) -> Callable[..., Any]:
        async def wrapped(*arguments: Any) -> Any:
            self.begin()
            start = time.perf_counter()
            parts = await function(*arguments)
            self._spent["read"] = time.perf_counter() - start
            return parts

        return wrapped

    def sending(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The last stage: what is before the answer ends with it."""
        timed = self.timed("send", function)

        def wrapped(*arguments: Any) -> Any:
            answers = timed(*arguments)
            assert self._began is not None
            whole = time.perf_counter() - self._began
            self._spent["other"] = whole - sum(self._spent.values())
            with self._file.open("a", encoding="utf-8") as file:
                file.write(json.dumps({stage: 1e3 * self._spent.get(stage, 0.0) for stage in STAGES}) + "\n")
            return answers

        return wrapped


def main() -> int:
    watch, known = Stopwatch(Path(sys.argv.pop(1))), bool(int(sys.argv.pop(1)))
    if not known:
        source._known = lambda *_: None
    for owner, name, stage in (
        (generation, "parse_with_files", "parse"),
        (body_files, "embedded_file", "base64"),
        (source, "_known", "known"),
        (Digester, "digests", "digest"),
        (source, "_header", "header"),
        (chat_prompt, "_build", "prompt"),
    ):
        setattr(owner, name, watch.timed(stage, getattr(owner, name)))
    setattr(generation, "read_body", watch.reading(body.read_body))  # noqa: B010 as the module has it, not as it exports it
    EngineClient.submit = watch.sending(EngineClient.submit)  # type: ignore[method-assign]
    return instant_server.main()


if __name__ == "__main__":
    sys.exit(main())
