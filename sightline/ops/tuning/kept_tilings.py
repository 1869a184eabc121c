"""Tilings that `sightline tune` found better than the rule, kept on disk for the next start.

One file for each GPU with its driver, torch, Triton and kernel: with another one times are others, and nobody uses the file.
It lies in the user's own cache folder, is written whole or not at all, and writers wait for each other.
"""

import ctypes
import fcntl
import hashlib
import json
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import torch

from sightline.errors import ConfigError
from sightline.ops.external.compile_cache import cache_folder
from sightline.ops.triton.small_m_tilings import (
    Chip,
    Choices,
    can_run,
    digest_of,
    from_entry,
    to_entry,
)

_FORMAT = 1
_KERNEL = "small_m.py"  # of ops/triton
_AGAIN = "`sightline tune` measures again."


@dataclass(frozen=True)
class Machine:
    """What times depend on."""

    gpu: str
    driver: str
    torch: str
    triton: str
    kernel: str  # hash of its source

    @classmethod
    def of(cls, chip: Chip) -> "Machine":
        import triton

        return cls(chip.name, _driver(), torch.__version__, triton.__version__, kernel_hash())

    @property
    def file_name(self) -> str:
        digest = hashlib.sha256(json.dumps(asdict(self)).encode()).hexdigest()[:12]
        return f"{_slug(self.gpu)}.{digest}.json"


@dataclass(frozen=True)
class Kept:
    choices: Choices
    problem: str = ""  # why a file was not used, as a sentence


def kernel_hash() -> str:
    source = (resources.files("sightline.ops.triton") / _KERNEL).read_bytes()
    return hashlib.sha256(source).hexdigest()[:16]


def tilings_folder() -> Path | None:
    """None where there is none that belongs to this user alone."""
    return cache_folder("tilings")


def read_kept(machine: Machine, chip: Chip) -> Kept:
    """What there is for this machine. A file that is damaged, or of something else, is not used."""
    folder = tilings_folder()
    if folder is None:
        return Kept({})
    path = folder / machine.file_name
    if path.exists():
        return _read(path, machine, chip)
    others = sorted(file.name for file in folder.glob(f"{_slug(machine.gpu)}.*.json"))
    if not others:
        return Kept({})
    return Kept({}, f"{folder / others[-1]} is not used: {_difference(folder / others[-1], machine)}. {_AGAIN}")


def keep(machine: Machine, chip: Chip, choices: Choices) -> None:
    """Puts these into the file, beside what is there. One that cannot be used is replaced."""
    path = file_of(machine)
    with _locked(path.parent):
        before = _read(path, machine, chip).choices if path.exists() else {}
        _write(path, machine, {**before, **choices})


def file_of(machine: Machine) -> Path:
    folder = tilings_folder()
    if folder is None:
        raise ConfigError("There is no cache folder that this user alone can write to, so tilings cannot be kept.")
    return folder / machine.file_name


def _read(path: Path, machine: Machine, chip: Chip) -> Kept:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        return Kept({}, f"{path} is not used: it cannot be read ({type(error).__name__}). {_AGAIN}")
    difference = _difference_of(data, machine)
    if difference:
        return Kept({}, f"{path} is not used: {difference}. {_AGAIN}")
    try:
        choices = dict(from_entry(entry) for entry in data["choices"])
        digest = data["digest"]
    except (KeyError, TypeError, ValueError):
        return Kept({}, f"{path} is not used: it is damaged. {_AGAIN}")
    if digest != digest_of(choices) or not all(can_run(shape, tiling, chip) for shape, tiling in choices.items()):
        return Kept({}, f"{path} is not used: it is damaged. {_AGAIN}")
    return Kept(choices)


def _write(path: Path, machine: Machine, choices: Choices) -> None:
    ordered = sorted(choices.items(), key=lambda pair: json.dumps(to_entry(*pair)))
    head = {"format": _FORMAT, "machine": asdict(machine), "digest": digest_of(choices)}
    lines = ",\n  ".join(json.dumps(to_entry(*pair)) for pair in ordered)
    text = json.dumps(head)[:-1] + f', "choices": [\n  {lines}\n]}}\n'
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=".")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    with (folder / ".lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # let go where the file is closed, or the process ends
        yield


def _difference(path: Path, machine: Machine) -> str:
    try:
        return _difference_of(json.loads(path.read_text(encoding="utf-8")), machine) or "it has another name"
    except (OSError, ValueError):
        return "it cannot be read"


def _difference_of(data: Any, machine: Machine) -> str:
    """What of a file's machine is another than this one, in words; empty if it is the same."""
    found = data.get("machine") if isinstance(data, dict) else None
    if not isinstance(found, dict) or data.get("format") != _FORMAT:
        return "it is damaged, or of another version"
    names = {"gpu": "GPU", "torch": "torch", "triton": "Triton"}
    differing = [names.get(name, name) for name, value in asdict(machine).items() if found.get(name) != value]
    return f"it was measured with another {' and another '.join(differing)}" if differing else ""


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def _driver() -> str:
    """Version of NVIDIA's driver, as its own library says."""
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return "unknown"
    text = ctypes.create_string_buffer(96)
    if library.nvmlInit_v2() != 0:
        return "unknown"
    try:
        said = library.nvmlSystemGetDriverVersion(text, len(text))
        return text.value.decode() if said == 0 else "unknown"
    finally:
        library.nvmlShutdown()
