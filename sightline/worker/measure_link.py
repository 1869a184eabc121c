"""How fast this machine's ranks compute and talk, for who runs what of the tower. A rough figure is enough: it is compared."""

import statistics
import time
from collections.abc import Callable

import torch

from sightline.parallel.costs import LinkCosts
from sightline.parallel.group import Group

_REPEATS = 5


def measure_link(group: Group, device: torch.device, dtype: torch.dtype) -> LinkCosts:
    """All ranks have the numbers of the first."""
    on_gpu = device.type == "cuda"
    side, megabytes = (4096, 32) if on_gpu else (256, 1)
    matrix = torch.randn(side, side, device=device, dtype=dtype)
    large = torch.zeros(group.size, megabytes * 2**20 // dtype.itemsize // group.size, device=device, dtype=dtype)
    small = torch.zeros(group.size, 8, device=device, dtype=dtype)
    even = [1] * group.size
    product = _seconds(lambda: matrix @ matrix, device)
    latency = _seconds(lambda: group.all_to_all(small, even, even), device)
    exchange = _seconds(lambda: group.all_to_all(large, even, even), device)
    sent = large.nbytes * (group.size - 1) / group.size
    own = [2 * side**3 / product, sent / max(exchange - latency, exchange / 10), latency]
    found = group.broadcast_(torch.tensor(own, dtype=torch.float64, device=device if group.graph_safe else "cpu"))
    return LinkCosts(*found.tolist())


def _seconds(run: Callable[[], object], device: torch.device) -> float:
    times = []
    for _ in range(_REPEATS + 1):
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        began = time.perf_counter()
        run()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append(time.perf_counter() - began)
    return statistics.median(times[1:])
