"""Answers that have been given, in a folder: JSON lines, a file for each actor, appended to as answers come.

Actors on all nodes read what there was when they began. A line that was torn when a process ended is no line.
"""

import hashlib
import os
import secrets
import threading
from pathlib import Path

import msgspec

from sightline.config import ModelConfig
from sightline.errors import ConfigError


class _Line(msgspec.Struct):
    key: str
    answer: str


_encoder, _decoder = msgspec.json.Encoder(), msgspec.json.Decoder(_Line)


def key_of(model: ModelConfig, body: bytes) -> bytes:
    """Of a request as it is asked, to the model that answers: another question, picture or sampling is another row."""
    return hashlib.blake2b(f"{model.model}\0{model.revision}\0".encode() + body, digest_size=16).digest()


class Checkpoint:
    """Keeps some hundred bytes of each answer, not the answer."""

    def __init__(self, folder: Path) -> None:
        self._places: dict[bytes, tuple[Path, int]] = {}
        self._lock = threading.Lock()
        self._own = folder / f"{secrets.token_hex(8)}.jsonl"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for path in sorted(folder.glob("*.jsonl")):
                self._read(path)
            self._file = os.open(self._own, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise ConfigError(f"The checkpoint {folder} cannot be used: {error.strerror}.") from None

    def _read(self, path: Path) -> None:
        place = 0
        with path.open("rb") as file:
            for line in file:
                try:
                    key = bytes.fromhex(_decoder.decode(line).key) if line.endswith(b"\n") else None
                except (msgspec.DecodeError, ValueError):
                    raise ConfigError(f"{path} is no file of a checkpoint; name another folder.") from None
                if key is not None:
                    self._places[key] = path, place
                place += len(line)

    def find(self, key: bytes) -> str | None:
        place = self._places.get(key)
        if place is None:
            return None
        with place[0].open("rb") as file:
            file.seek(place[1])
            return _decoder.decode(file.readline()).answer

    def add(self, key: bytes, answer: str) -> None:
        """One call of the kernel: lines are whole, or torn where the process ends in it."""
        with self._lock:
            os.write(self._file, _encoder.encode(_Line(key.hex(), answer)) + b"\n")
