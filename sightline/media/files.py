"""Local files inside one folder, and nothing else on the disk.

The one idea: links and .. are resolved first and the result must lie in the folder; then the file is opened from the folder
downwards, one name at a time and following no link, so that nobody can swap a folder for a link in between. What counts is
what was opened: only an ordinary file is read.
"""

import os
import stat
from pathlib import Path
from urllib.parse import unquote

from sightline.errors import MediaError
from sightline.media.limits import ByteAllowance

# Files here look ordinary and are not: reading some never ends, others tell about the process and the machine.
_KERNEL = (Path("/proc"), Path("/sys"))
# Enough to go through a folder; where a system has O_PATH, a folder that may be entered need not be listable.
_ENTER = (os.O_PATH if hasattr(os, "O_PATH") else os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


def path_of_url(url: str, subject: str) -> Path:
    """The path in a file: URL, percent-decoded once."""
    host, _, path = url[len("file://") :].partition("/")
    if host.lower() not in ("", "localhost"):
        raise MediaError(f"{subject} cannot be read: a file URL may not name host {host[:100]!r}.")
    return Path(unquote(f"/{path}"))


def read_file(path: Path, root: str | None, allowance: ByteAllowance) -> bytes:
    """The file's bytes if it lies in `root`; None means that no file does."""
    subject = allowance.subject
    if root is None:
        raise MediaError(f"{subject} cannot be read: local files are not allowed (--allowed-local-media-path).")
    try:
        folder = Path(root).resolve()
        real = path.resolve()
        # Whether the file exists is looked at later, so that nobody learns which files there are elsewhere.
        if not real.is_relative_to(folder) or any(real.is_relative_to(directory) for directory in _KERNEL):
            raise MediaError(f"{subject} cannot be read: it is outside the folder of --allowed-local-media-path.")
        file = _open_below(folder, real.relative_to(folder).parts)
        try:
            status = os.fstat(file)
            if not stat.S_ISREG(status.st_mode):
                raise MediaError(f"{subject} cannot be read: it is not a file.")
            allowance.check(status.st_size)
            return _read_all(file, status.st_size, allowance)
        finally:
            os.close(file)
    except (OSError, RuntimeError, ValueError) as error:  # RuntimeError: a loop of links; ValueError: a zero byte in the name
        reason = "it has too many links" if isinstance(error, RuntimeError) else str(error)
        if isinstance(error, OSError):
            reason = error.strerror or type(error).__name__  # str() of it has the path as it is on this disk
        raise MediaError(f"{subject} cannot be read: {reason}.") from error


def size_of_file(path: Path, root: str | None) -> int:
    """Of one that lies in `root`; 0 where there is none, of which read_file says what is wrong."""
    try:
        real = path.resolve()
        inside = root is not None and real.is_relative_to(Path(root).resolve())
        return real.stat().st_size if inside and real.is_file() else 0
    except (OSError, RuntimeError, ValueError):
        return 0


def _open_below(folder: Path, names: tuple[str, ...]) -> int:
    """A descriptor of the file; opening a link fails, opening a pipe does not wait for its writer."""
    directory = os.open(folder, _ENTER)
    for number, name in enumerate(names, 1):
        try:
            below = os.open(name, _READ if number == len(names) else _ENTER | os.O_NOFOLLOW, dir_fd=directory)
        finally:
            os.close(directory)
        directory = below
    return directory


def _read_all(file: int, size: int, allowance: ByteAllowance) -> bytes:
    """The file may grow while it is read; the limit holds all the same."""
    parts = []
    while part := os.read(file, max(size, 1 << 16)):
        allowance.take(len(part))
        parts.append(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)
