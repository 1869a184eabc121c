"""The file of samples: JSON lines, the first about the run, then one per finished sample, written as it finishes.

```
{"sightline_eval": 1, "settings": {"task": "mmmu", "split": "validation", …}, "answerer": {"model": …}, …}
{"id": "validation_Math_1", "asked": digest, "groups": […], "question": …, "expected": …, "got": …, "score": 1.0, …}
{"id": "validation_Math_2", "asked": digest, …, "error": "…"}
```

A sample with an error is asked again by a rerun; where an id occurs twice, the last line counts. A line that was cut off by a
crash is dropped.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from sightline.errors import ConfigError

FORMAT = 1
_MARK = "sightline_eval"


@dataclass(frozen=True)
class SampleFile:
    path: Path
    settings: Mapping[str, Any]
    answerer: Mapping[str, Any]
    records: Mapping[str, Mapping[str, Any]]  # by id


def read_sample_file(path: Path) -> SampleFile:
    try:
        text = path.read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"The file of samples {path} cannot be read: {error}.") from None
    lines = text.split("\n")[:-1]  # what follows the last newline was cut off
    head, *records = [_object(line, path, number) for number, line in enumerate(lines, 1)] or [{}]
    if head.get(_MARK) != FORMAT:
        raise ConfigError(f"{path} is not a file of samples: its first line does not say {_MARK!r}: {FORMAT}.")
    by_id = {}
    for number, record in enumerate(records, 2):
        if not isinstance(record.get("id"), str) or not isinstance(record.get("asked"), str):
            raise ConfigError(f"{path} has no sample in line {number}: 'id' or 'asked' is missing.")
        by_id[record["id"]] = record
    return SampleFile(path, head["settings"], head["answerer"], by_id)


def _object(line: str, path: Path, number: int) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise ConfigError(f"{path} has no JSON object in line {number}.")
    return value


class SampleWriter:
    """Goes on with a file of the same run, or begins one."""

    def __init__(self, path: Path, settings: Mapping[str, Any], answerer: Mapping[str, Any], about: Mapping[str, Any]) -> None:
        """`about` is told in a new file and not compared with an old one's."""
        self.path = path
        self.finished: dict[str, Mapping[str, Any]] = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        old = path.read_bytes() if path.exists() else b""
        whole = old.rfind(b"\n") + 1
        if whole:
            known = read_sample_file(path)
            same_or_refuse(known, SampleFile(path, settings, answerer, {}), ("settings", "answerer"))
            self.finished = {name: record for name, record in known.records.items() if not record.get("error")}
        elif old and not old.startswith(b'{"' + _MARK.encode()):
            raise ConfigError(f"{path} exists and is not a file of samples.")
        self._file: TextIO = path.open("r+" if old else "w", encoding="utf-8", newline="\n")
        self._file.seek(whole)
        self._file.truncate()
        if not whole:
            self.write({_MARK: FORMAT, "settings": settings, "answerer": answerer, **about})

    def write(self, record: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(record, ensure_ascii=False) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def same_or_refuse(there: SampleFile, here: SampleFile, parts: tuple[str, ...]) -> None:
    """Raises if the runs of two files differ, naming the first thing that does."""
    for part in parts:
        one, other = _flat(getattr(there, part)), _flat(getattr(here, part))
        for name in [*one, *(name for name in other if name not in one)]:
            if one.get(name) != other.get(name):
                values = f"{one.get(name)!r} and {other.get(name)!r}"
                if there.path == here.path:
                    raise ConfigError(f"{there.path} holds another run: {name} there and here is {values}; name another file.")
                raise ConfigError(f"{there.path} and {here.path} cannot be compared: {name} is {values}.")


def _flat(values: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in values.items():
        flat |= _flat(value, f"{before}{name}.") if isinstance(value, Mapping) else {before + name: value}
    return flat
