"""What this machine tells of itself: its GPU, memory of the GPU and of processes."""

import contextlib
import os
import subprocess
from pathlib import Path


def gpu_name() -> str | None:
    """The first GPU of this machine."""
    return _ask_smi("name")


def gpu_memory_mb() -> float | None:
    """Memory of the first GPU that all programs have together, now. Torch keeps what it once took: its peak so far."""
    told = _ask_smi("memory.used")
    return float(told) if told is not None else None


def _ask_smi(field: str) -> str | None:
    command = ["nvidia-smi", f"--query-gpu={field}", "--format=csv,noheader,nounits"]
    with contextlib.suppress(OSError):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode == 0 and done.stdout.strip():
            return done.stdout.splitlines()[0].strip()
    return None


def process_memory_mb(pid: int) -> float | None:
    """Resident memory of a process, or None if it is not there."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) / 1024
    return None


def process_age_s(pid: int) -> float | None:
    """Since a process was started, or None if it is not there."""
    with contextlib.suppress(OSError):
        started = int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[19]) / os.sysconf("SC_CLK_TCK")
        return float(Path("/proc/uptime").read_text().split()[0]) - started
    return None
