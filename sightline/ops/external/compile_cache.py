"""Keeps on disk what flash-attn-4 compiles at first use, two seconds a kernel, so that the next start finds it.

The library has such a cache, off unless its environment variables say otherwise. What a user has set there is left alone.
"""

import os
from pathlib import Path

SWITCH, FOLDER = "FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED", "FLASH_ATTENTION_CUTE_DSL_CACHE_DIR"


def keep_compiled() -> None:
    """To be called before flash-attn-4 is imported, which reads the variables then."""
    if SWITCH in os.environ:
        return
    if FOLDER not in os.environ:
        folder = _cache_folder()
        if folder is None:
            return  # compiled anew at each start: slower, and otherwise the same
        os.environ[FOLDER] = str(folder)
    os.environ[SWITCH] = "1"


def _cache_folder() -> Path | None:
    """A folder of this user alone, because what lies there will be run; None where there can be none."""
    try:
        caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        folder = Path(caches) / "sightline" / "flash-attn-4"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
    except (OSError, RuntimeError):  # no home, a read-only one, a file in its place
        return None
    private = status.st_uid == os.getuid() and not status.st_mode & 0o022
    return folder if private and os.access(folder, os.W_OK | os.X_OK) else None
