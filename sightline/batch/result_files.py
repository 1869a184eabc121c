"""The files of answers and of errors. A line is written at once and whole, so that whatever ends the process tears the last at
most; the next run drops that and goes on.

```
{"id": "batch_req_…", "custom_id": …, "response": {"status_code": 200, "request_id": …, "body": {…}}, "error": null}
```

A row that has no answer has its line in the file of errors: `error` says why, and which line of the input it is. That file is
written anew by each run, which asks such rows again.
"""

import contextlib
import fcntl
import os
import secrets
from pathlib import Path
from typing import Any

import msgspec

from sightline.batch.input_file import digest_of
from sightline.errors import ConfigError

_BEGINNING = b'{"id":"batch_req_'


class ResultResponse(msgspec.Struct):
    status_code: int
    request_id: str
    body: msgspec.Raw


class ResultError(msgspec.Struct):
    code: str | None
    message: str
    param: str | None
    line: int  # of the input, from 1


class ResultLine(msgspec.Struct):
    id: str
    custom_id: str | None
    response: ResultResponse | None
    error: ResultError | None


class _Known(msgspec.Struct):
    id: str
    custom_id: str
    response: dict[str, Any]


_encoder, _decoder = msgspec.json.Encoder(), msgspec.json.Decoder(_Known)


def result_line(custom_id: str | None, response: ResultResponse | None, error: ResultError | None = None) -> bytes:
    return _encoder.encode(ResultLine(f"batch_req_{secrets.token_hex(12)}", custom_id, response, error)) + b"\n"


class ResultFile:
    """Of answers. Only one process at a time has it."""

    def __init__(self, path: Path, answered: set[bytes]) -> None:
        """Digests of the custom_ids that stand in it are added to `answered`."""
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise ConfigError(f"The file of answers {path} cannot be written: {error.strerror}.") from None
        try:
            self._lock()
            whole = self._read(answered)
            os.ftruncate(self._file, whole)
            os.lseek(self._file, whole, os.SEEK_SET)
        except OSError as error:
            self.close()
            raise ConfigError(f"The file of answers {path} cannot be continued: {error.strerror}.") from None
        except ConfigError:
            self.close()
            raise

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(f"The file of answers {self.path} is being written by another process.") from None

    def _read(self, answered: set[bytes]) -> int:
        """Bytes of all whole lines."""
        whole = 0
        with self.path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if not line.endswith(b"\n"):  # the last one
                    if line[: len(_BEGINNING)] != _BEGINNING[: len(line)]:
                        raise self._foreign(number)
                    break
                try:
                    answered.add(digest_of(_decoder.decode(line).custom_id))
                except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
                    raise self._foreign(number) from None
                whole += len(line)
        return whole

    def _foreign(self, line: int) -> ConfigError:
        return ConfigError(f"{self.path} exists and holds no answers of a batch: see its line {line}; name another file.")

    def write(self, line: bytes) -> None:
        write_all(self._file, line, self.path)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            os.fsync(self._file)
        os.close(self._file)


class ErrorFile:
    """Is there when there was an error."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: int | None = None
        try:
            if path.exists():
                with path.open("rb") as file:
                    if file.read(len(_BEGINNING)) not in (_BEGINNING, b""):
                        raise ConfigError(f"{path} exists and holds no errors of a batch; name another file.")
                path.unlink()
        except OSError as error:
            raise self._fault(error) from None

    def write(self, line: bytes) -> None:
        if self._file is None:
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
            except OSError as error:
                raise self._fault(error) from None
        write_all(self._file, line, self.path)

    def _fault(self, error: OSError) -> ConfigError:
        return ConfigError(f"The file of errors {self.path} cannot be written: {error.strerror}.")

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)


def write_all(file: int, data: bytes, path: Path) -> None:
    left = memoryview(data)
    try:
        while left:
            left = left[os.write(file, left) :]
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}; run the batch again to go on.") from None
