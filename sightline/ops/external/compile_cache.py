"""Keeps on disk what flash-attn-4 and quack compile at first use, a second or two a kernel, so that the next start finds it.

Both libraries have such a cache: that of the first is off by default, that of the second lies in a folder that others may have
made before. What a user has set in their environment variables is left alone.
"""

import os
from pathlib import Path

SWITCH, FOLDER = "FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED", "FLASH_ATTENTION_CUTE_DSL_CACHE_DIR"
QUACK_SWITCH, QUACK_FOLDER = "QUACK_CACHE_ENABLED", "QUACK_CACHE_DIR"


def keep_compiled() -> None:
    """To be called before either library is imported, which reads the variables then."""
    _choose(SWITCH, FOLDER, "flash-attn-4")
    _choose(QUACK_SWITCH, QUACK_FOLDER, "quack")


def _choose(switch: str, variable: str, name: str) -> None:
    if switch in os.environ:
        return
    if variable not in os.environ:
        folder = cache_folder(name)
        if folder is None:
            os.environ[switch] = "0"  # compiled anew at each start: slower, and otherwise the same
            return
        os.environ[variable] = str(folder)
    os.environ[switch] = "1"


def cache_folder(name: str) -> Path | None:
    """A folder of this user alone, because what lies there will be run; None where there can be none."""
    try:
        caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        folder = Path(caches) / "sightline" / name
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
    except (OSError, RuntimeError):  # no home, a read-only one, a file in its place
        return None
    private = status.st_uid == os.getuid() and not status.st_mode & 0o022
    return folder if private and os.access(folder, os.W_OK | os.X_OK) else None
