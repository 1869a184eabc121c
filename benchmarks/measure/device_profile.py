"""Which kernels a device runs while something is computed, and how long it has nothing to do meanwhile."""

import re
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from sightline.bench.load.tables import Cell, table

TOP_KERNELS = 25
_SHOWN_CHARACTERS = 90  # of a kernel's name; templates make them hundreds long


@dataclass(frozen=True)
class KernelTime:
    name: str
    count: int
    milliseconds: float  # all its runs together


@dataclass(frozen=True)
class DeviceProfile:
    """On a CPU, torch's operators stand for kernels, and there is no idle time to speak of."""

    runs: int  # how often the thing was computed
    wall_ms: float  # all runs together, while being watched
    busy_ms: float  # of the time in which at least one kernel ran
    kernels: tuple[KernelTime, ...]  # longest first

    @property
    def busy_ms_per_run(self) -> float:
        return self.busy_ms / self.runs


def profile_device(run: Callable[[], Any], runs: int, device: torch.device) -> DeviceProfile:
    """Watches `runs` calls, which may leave work on the device: it is waited for at the end."""
    on_gpu = device.type == "cuda"
    if on_gpu:
        torch.cuda.synchronize(device)
    with profile(activities=[ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU]) as watched:
        start = time.perf_counter()
        for _ in range(runs):
            run()
        if on_gpu:
            torch.cuda.synchronize(device)
        wall_ms = 1000 * (time.perf_counter() - start)
    if not on_gpu:
        return _of_operators(watched, runs, wall_ms)
    spans = [
        (event.name, event.time_range.start, event.time_range.end)  # microseconds
        for event in watched.events() or ()
        if event.device_type.name == "CUDA" and not event.is_user_annotation
    ]
    return DeviceProfile(runs, wall_ms, union([(start, end) for _, start, end in spans]) / 1000, by_kernel(spans))


def _of_operators(watched: Any, runs: int, wall_ms: float) -> DeviceProfile:
    found = [KernelTime(one.key, one.count, one.self_cpu_time_total / 1000) for one in watched.key_averages()]
    kernels = tuple(sorted(found, key=lambda one: -one.milliseconds))
    return DeviceProfile(runs, wall_ms, min(wall_ms, sum(one.milliseconds for one in kernels)), kernels)


def by_kernel(spans: Sequence[tuple[str, float, float]]) -> tuple[KernelTime, ...]:
    """From (name, start, end) in microseconds."""
    times: dict[str, list[float]] = defaultdict(list)
    for name, start, end in spans:
        times[_short(name)].append(end - start)
    found = [KernelTime(name, len(own), sum(own) / 1000) for name, own in times.items()]
    return tuple(sorted(found, key=lambda one: -one.milliseconds))


def union(spans: Sequence[tuple[float, float]]) -> float:
    """Length of what the intervals cover together: kernels may run side by side."""
    covered, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        if end > reached:
            covered += end - max(start, reached)
            reached = end
    return covered


def _short(name: str) -> str:
    name = re.sub(r"^void ", "", name)
    return name if len(name) <= _SHOWN_CHARACTERS else name[: _SHOWN_CHARACTERS - 2] + " …"


def kernel_table(found: DeviceProfile, most: int = TOP_KERNELS) -> str:
    """Per run of the thing, longest first."""
    total = sum(one.milliseconds for one in found.kernels) or 1.0
    rows: list[list[Cell]] = [
        [one.name, one.count / found.runs, f"{one.milliseconds / found.runs:.4f}", f"{100 * one.milliseconds / total:.1f} %"]
        for one in found.kernels[:most]
    ]
    rest = found.kernels[most:]
    if rest:
        left = sum(one.milliseconds for one in rest)
        count = sum(one.count for one in rest)
        rows.append([f"{len(rest)} others", count / found.runs, f"{left / found.runs:.4f}", f"{100 * left / total:.1f} %"])
    return table(["kernel", "runs", "ms", "share"], rows)


def profile_fields(found: DeviceProfile, most: int = TOP_KERNELS) -> dict[str, Any]:
    return {
        "runs": found.runs,
        "wall_ms": found.wall_ms,
        "busy_ms": found.busy_ms,
        "kernels": [
            {"name": one.name, "count": one.count, "milliseconds": round(one.milliseconds, 4)} for one in found.kernels[:most]
        ],
        "other_kernels_ms": round(sum(one.milliseconds for one in found.kernels[most:]), 4),
    }
