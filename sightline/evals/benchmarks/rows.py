"""Rows of published datasets: parquet as the Hub has it, or JSON with the same columns. Images are read only when asked for."""

import itertools
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pybase64

from sightline.errors import ConfigError

_IMAGE_FIELDS = ("bytes", "path")  # of an image column of the Hub
_BATCH = 16  # rows with their images in memory at once


@dataclass(frozen=True, eq=False)
class DatasetRow:
    number: int  # over all files, from 0
    file: Path
    fields: Mapping[str, Any]

    def first(self, *names: str) -> Any:
        """The field under the first of these names that the row has: publishers of one dataset do not agree on names."""
        for name in names:
            if self.fields.get(name) is not None:
                return self.fields[name]
        raise ConfigError(f"Row {self.number} of {self.file} has no {' or '.join(map(repr, names))}.")

    def text(self, *names: str) -> str:
        value = self.first(*names)
        if not isinstance(value, str):
            raise ConfigError(f"Row {self.number} of {self.file} has {value!r} as {names[0]!r}, but it must be text.")
        return value

    def texts(self, *names: str) -> list[str]:
        """A list of texts; a single one counts as a list."""
        value = self.first(*names)
        listed = [value] if isinstance(value, str) else value
        if not isinstance(listed, list) or not listed or not all(isinstance(one, str) for one in listed):
            raise ConfigError(f"Row {self.number} of {self.file} has {value!r} as {names[0]!r}, but it must be texts.")
        return listed

    def image(self, *names: str) -> bytes:
        """The encoded file: bytes of the row, a data URL, or a path beside the file of the row or in a folder there."""
        value = self.first(*names)
        if isinstance(value, Mapping):
            if value.get("bytes"):
                return bytes(value["bytes"])
            value = value.get("path")
        if isinstance(value, str) and value.startswith("data:") and ";base64," in value:
            return pybase64.b64decode(value.split(",", 1)[1])
        if not isinstance(value, str) or not value:
            raise ConfigError(f"Row {self.number} of {self.file} has neither bytes nor a path in {names[0]!r}.")
        if Path(value).is_absolute() or ".." in Path(value).parts:  # a dataset does not choose among the files of the machine
            raise ConfigError(f"Row {self.number} of {self.file} names an image {value!r} outside its own folder.")
        for folder in (self.file.parent, *sorted(entry for entry in self.file.parent.iterdir() if entry.is_dir())):
            if (folder / value).is_file():
                return (folder / value).read_bytes()
        raise ConfigError(f"Row {self.number} of {self.file} names an image {value!r} that is not beside that file.")


class Dataset:
    """The rows of some files, one file after another."""

    def __init__(self, files: Sequence[Path]) -> None:
        self._files = files

    def without_images(self) -> list[DatasetRow]:
        return list(self._read(None))

    def with_images(self, wanted: Collection[int]) -> Iterator[DatasetRow]:
        """The rows with these numbers, in order."""
        return self._read(frozenset(wanted))

    def _read(self, wanted: frozenset[int] | None) -> Iterator[DatasetRow]:
        start = 0
        for file in self._files:
            parts = _read_parquet(file, start, wanted) if file.suffix == ".parquet" else _read_json(file)
            count = 0
            for count, fields in enumerate(parts, 1):
                number = start + count - 1
                if fields is not None and (wanted is None or number in wanted):
                    yield DatasetRow(number, file, fields)
            start += count


def _read_parquet(file: Path, start: int, wanted: frozenset[int] | None) -> Iterator[dict[str, Any] | None]:
    """All rows without images, or with images those of the row groups that hold a wanted one, and None for each other row.

    `start` is the number of the file's first row.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise ConfigError(f"{file} is a parquet file, which needs pyarrow: pip install 'sightline-vlm[eval]'.") from None
    try:
        with pyarrow.parquet.ParquetFile(file) as parquet:
            columns = [field.name for field in parquet.schema_arrow if wanted is not None or not _is_image(field)]
            for group in range(parquet.num_row_groups):
                count = parquet.metadata.row_group(group).num_rows
                if wanted is not None and wanted.isdisjoint(range(start, start + count)):
                    yield from itertools.repeat(None, count)
                else:
                    for batch in parquet.iter_batches(_BATCH, row_groups=[group], columns=columns):
                        yield from batch.to_pylist()
                start += count
    except (OSError, pyarrow.ArrowException) as error:
        raise ConfigError(f"{file} cannot be read as parquet: {' '.join(str(error).split())}.") from None


def _is_image(field: Any) -> bool:
    import pyarrow

    kind = field.type
    return bool(pyarrow.types.is_struct(kind)) and {part.name for part in kind} >= set(_IMAGE_FIELDS)


def _read_json(file: Path) -> Iterator[dict[str, Any]]:
    """JSON lines, or one array, or an object whose "data" is the array."""
    try:
        text = file.read_text(encoding="utf-8")
        if file.suffix == ".jsonl":
            rows = [json.loads(line) for line in text.split("\n") if line.strip()]
        else:
            rows = json.loads(text)
            rows = rows["data"] if isinstance(rows, dict) and "data" in rows else rows
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file} cannot be read as JSON: {error}.") from None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ConfigError(f"{file} is not a list of JSON objects.")
    yield from rows
