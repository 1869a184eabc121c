"""The file of requests: JSON lines, each {"custom_id", "method", "url", "body"}, read one at a time.

What is wrong with a line is told of that line; those that have an answer already are passed over.
"""

import hashlib
import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from sightline.errors import ConfigError
from sightline.server.admission import Part

_MB = 1_000_000
_FEW, _FEW_BYTES = 32, 4 * _MB  # a change of threads takes as long as a small row
_PIECE = 1 << 20  # of a line that is passed over
_MARK = b"\xef\xbb\xbf"  # that some programs put before UTF-8


class _Line(msgspec.Struct):
    """What else stands in a line changes no answer."""

    custom_id: Any = None
    method: Any = None
    url: Any = None
    body: msgspec.Raw = msgspec.Raw()


_decoder = msgspec.json.Decoder(_Line)


@dataclass(frozen=True)
class Row:
    line: int  # from 1
    start: int  # of the line in the file
    size: int  # bytes of the line
    custom_id: str
    url: str
    parts: list[Part]  # of the body; whoever reads it takes them


@dataclass(frozen=True)
class BadRow:
    """A line that is no request."""

    line: int
    size: int
    custom_id: str | None
    code: str
    message: str
    param: str | None = None


class InputFile:
    def __init__(self, path: Path, urls: Collection[str], answered: set[bytes], max_mb: float) -> None:
        """`urls`: those of endpoints. `answered`: digests of the custom_ids of rows that are passed over; it is used up."""
        self._path, self._urls, self._answered = path, urls, answered
        self._most = int(max_mb * _MB)
        self._seen: set[bytes] = set()
        self._line = self._start = 0
        self.passed = 0  # rows that had an answer
        self.passed_bytes = 0
        self.closed = False
        try:
            self._file = path.open("rb")
            self.size = path.stat().st_size
        except OSError as error:
            raise ConfigError(f"The file of requests {path} cannot be read: {error.strerror}.") from None

    def next_few(self) -> list[Row | BadRow]:
        """The next ones that have no answer, a few megabytes of them; none at the end. May take long; `closed` ends it."""
        found: list[Row | BadRow] = []
        while len(found) < _FEW and sum(row.size for row in found) < _FEW_BYTES:
            row = self._next()
            if row is None:
                break
            found.append(row)
        return found

    def _next(self) -> Row | BadRow | None:
        while not self.closed:
            try:
                line = self._file.readline(self._most + 1)
                size = len(line) + (0 if line.endswith(b"\n") or len(line) <= self._most else self._pass_over())
            except OSError as error:
                raise ConfigError(f"The file of requests {self._path} cannot be read: {error.strerror}.") from None
            if not line:
                return None
            self._line, start, self._start = self._line + 1, self._start, self._start + size
            if size > self._most:
                what = f"Line {self._line} is larger than the {self._most / _MB:g} MB allowed (max_request_mb)."
                return BadRow(self._line, size, None, "request_too_large", what)
            if self._line == 1:
                line = line.removeprefix(_MARK)
            row = self._read(line, start, size) if line.strip() else None
            if row is not None:
                return row
            self.passed_bytes += size
        return None

    def refill(self, row: Row) -> None:
        """With its body, to be asked once more."""
        text = os.pread(self._file.fileno(), row.size, row.start)
        row.parts[:] = [bytes(_decoder.decode(text.removeprefix(_MARK)).body)]

    def close(self) -> None:
        self.closed = True
        self._file.close()

    def _pass_over(self) -> int:
        """The rest of a line."""
        size = 0
        while piece := self._file.readline(_PIECE):
            size += len(piece)
            if piece.endswith(b"\n") or self.closed:
                break
        return size

    def _read(self, text: bytes, start: int, size: int) -> Row | BadRow | None:
        """None: it has an answer."""

        def bad(code: str, message: str, param: str | None = None) -> BadRow:
            return BadRow(self._line, size, custom_id, code, f"Line {self._line} {message}", param)

        custom_id: str | None = None
        try:
            line = _decoder.decode(text)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            return bad("invalid_json_line", f"is not a JSON object: {error}.")
        if not isinstance(line.custom_id, str) or not line.custom_id:
            return bad("missing_required_parameter", "has no custom_id, a text that is its own.", "custom_id")
        custom_id = line.custom_id
        digest = digest_of(custom_id)
        if digest in self._seen:
            return bad("duplicate_custom_id", f"has the custom_id {custom_id[:200]!r} of an earlier line.", "custom_id")
        self._seen.add(digest)
        if digest in self._answered:
            self._answered.remove(digest)
            self.passed += 1
            return None
        if line.method != "POST":
            return bad("invalid_method", f"has the method {line.method!r:.200}; use 'POST'.", "method")
        if line.url not in self._urls:
            return bad("invalid_url", f"has the url {line.url!r:.200}; there is {', '.join(self._urls)}.", "url")
        body = bytes(line.body)
        if not body.startswith(b"{"):
            return bad("missing_required_parameter", "has no body, a JSON object.", "body")
        return Row(self._line, start, size, custom_id, line.url, [body])


def digest_of(custom_id: str) -> bytes:
    """Ids may be of any length; about 100 bytes are kept of each row."""
    return hashlib.blake2b(custom_id.encode(errors="surrogatepass"), digest_size=16).digest()
