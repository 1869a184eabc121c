"""How many processors this process may use, how many threads decode on them, and how many compute a model."""

import math
import os
from pathlib import Path

from sightline.errors import ConfigError

_MOST_DECODE_THREADS = 16
# What a thread has to do for each token to be worth it: threads meet after every operation, some hundred times a token. Two in
# any case: alone, a small model is a little faster with one; but beside busy neighbours the scheduler lets two threads that
# often sleep go first, and one that never does waits for its turn (benchmarks/results/cpu_threads.json).
_PARAMETERS_PER_THREAD = 32_000_000
_LEAST_THREADS = 2


def available_processors() -> int:
    """Those that it may run on, or as many as its cgroup has the time of, if that is less."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cgroup_quota()
    return count if quota is None else max(1, min(count, math.ceil(quota)))


def cgroup_quota(root: Path = Path("/")) -> float | None:
    """Processors whose time Linux gives this process's cgroup, or one that it is in; None: no limit."""
    found: list[float] = []
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        base = root / "sys/fs/cgroup" / controllers
        for folder in (base / path.lstrip("/"), *(base / path.lstrip("/")).parents):
            found += _quota_of(folder)
            if folder == base:
                break
    return min(found, default=None)


def _quota_of(folder: Path) -> list[float]:
    limits = " ".join(_lines(folder / "cpu.max")).split()  # of version 2: "max 100000" or "150000 100000"
    if not limits:
        limits = [*_lines(folder / "cpu.cfs_quota_us"), *_lines(folder / "cpu.cfs_period_us")]  # of version 1; -1: no limit
    if len(limits) != 2 or limits[0] == "max" or int(limits[0]) <= 0:
        return []
    return [int(limits[0]) / int(limits[1])]


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="ascii").splitlines()
    except OSError:
        return []


def choose_decode_threads(wanted: int | None) -> int:
    if wanted is None:
        return min(_MOST_DECODE_THREADS, available_processors())
    if wanted < 1:
        raise ConfigError(f"decode_threads is {wanted}, but must be at least 1.")
    return wanted


def choose_cpu_threads(wanted: int | None, parameters: int) -> int | None:
    """For a language model of so many parameters on a CPU; None: as the user's OMP_NUM_THREADS says."""
    if wanted is not None and wanted < 1:
        raise ConfigError(f"cpu_threads is {wanted}, but must be at least 1.")
    if wanted is None and "OMP_NUM_THREADS" in os.environ:
        return None
    return wanted or min(available_processors(), max(_LEAST_THREADS, parameters // _PARAMETERS_PER_THREAD))
