"""What a call costs the device.

On a GPU a time is that of one launch among many inside a CUDA graph, so the host does not count; what cannot be captured is
launched many times.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

_GRAPH_SECONDS = 2e-3  # what one graph should last, so that its start and end do not count
_MOST_LAUNCHES = 50


@dataclass(frozen=True)
class Timed:
    microseconds: float
    captured: bool


def measure_calls(calls: Sequence[Callable[[], Any]], repeats: int, device: torch.device) -> Timed:
    """Median time of one of the calls, which do the same to different inputs."""
    if device.type == "cpu":
        times = []
        for number in range(repeats + 1):
            start = time.perf_counter()
            calls[number % len(calls)]()
            times.append(time.perf_counter() - start)
        return Timed(1e6 * statistics.median(times[1:]), False)
    for call in calls:  # compiles, plans and fills tables
        call()
    once = _event_seconds(lambda: calls[0](), 1)
    launches = max(1, min(_MOST_LAUNCHES, round(_GRAPH_SECONDS / once)))
    order = [calls[number % len(calls)] for number in range(launches)]

    def many() -> None:
        for call in order:
            call()

    graph = _capture(many)
    run, captured = (graph.replay, True) if graph is not None else (many, False)
    run()
    times = [_event_seconds(run, launches) for _ in range(repeats if once < 0.02 else min(3, repeats))]
    return Timed(1e6 * statistics.median(times), captured)


def _event_seconds(run: Callable[[], Any], launches: int) -> float:
    """Seconds of the device per launch."""
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    begin.record()
    run()
    end.record()
    end.synchronize()
    return max(1e-7, float(begin.elapsed_time(end)) / 1000 / launches)


def _capture(run: Callable[[], Any]) -> "torch.cuda.CUDAGraph | None":
    """None for what a graph cannot hold, for example a wait for the device."""
    stream = torch.cuda.current_stream()
    if _waits(run):
        return None
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            run()
    except torch.OutOfMemoryError:
        raise
    except RuntimeError:
        torch.cuda.set_stream(stream)  # a capture that fails leaves its own behind
        torch.cuda.synchronize()
        return None
    return graph


def _waits(run: Callable[[], Any]) -> bool:
    """Whether the host waits for the device inside. Found out without a capture, which would end badly."""
    torch.cuda.synchronize()
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        run()
    except torch.OutOfMemoryError:
        raise
    except RuntimeError:
        return True
    finally:
        torch.cuda.set_sync_debug_mode(before)
        torch.cuda.synchronize()
    return False
