"""What the server's machine tells, where that is this one: its GPU, memory of the GPU and of processes."""

import contextlib
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

from sightline.bench.load.http import TransportError
from sightline.bench.load.serve import connected, in_event_loop
from sightline.bench.load.target import Target, TargetConfig

_SAMPLE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


def read_metrics(text: str) -> dict[str, float]:
    """Prometheus's text as a map from `name` or `name{label=value,...}` to the value."""
    found = {}
    for name, labels, value in _SAMPLE.findall(text):
        shown = ",".join(f"{label}={said}" for label, said in _LABEL.findall(labels))
        found[f"{name}{{{shown}}}" if shown else name] = float(value)
    return found


async def fetch_metrics(target: Target) -> dict[str, float]:
    """What /metrics says now; empty where a server has none."""
    try:
        reply = await target.client.request("GET", "/metrics")
    except TransportError:
        return {}
    return read_metrics(reply.body.decode("utf-8", "replace")) if reply.status == 200 else {}


async def served_device(target: Target) -> str:
    """What a summary calls the device: the GPU's name, or what the server says of itself."""
    return device_in(await fetch_metrics(target))


def device_in(metrics: Mapping[str, float]) -> str:
    named = next((re.findall(r"device=([^,}]*)", name)[0] for name in metrics if name.startswith("sightline:info{")), "unknown")
    if named.startswith("cuda"):
        return gpu_name() or str(named)
    return str(named)


def device_of(config: TargetConfig) -> str:
    """The same from outside an event loop."""

    async def ask() -> str:
        async with connected(config) as target:
            return await served_device(target)

    return in_event_loop(ask())


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


def metric(metrics: Mapping[str, float], name: str) -> float:
    """A metric of Sightline's; 0 if it is not there."""
    return metrics.get(f"sightline:{name}", 0.0)
