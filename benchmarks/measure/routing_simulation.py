"""The same skewed load without processes and clocks: what routing alone makes of it, whatever the machine is at.

An engine is as many servers as sequences run in it, with one queue; each request takes it the same time.
"""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from sightline.bench.load.arrivals import arrival_times
from sightline.server.routing import choose, engine_names, media_key, rendezvous_order

_POOL = 128  # images


@dataclass
class _Engine:
    sequences: int
    ends: list[float] = field(default_factory=list)  # of the requests that run or wait

    def load(self, now: float) -> int:
        while self.ends and self.ends[0] <= now:
            heapq.heappop(self.ends)
        return len(self.ends)

    def take(self, now: float, seconds: float) -> float:
        """When it will be done with a request that comes now: it begins when fewer than `sequences` are before it."""
        begins = now if len(self.ends) < self.sequences else heapq.nsmallest(len(self.ends), self.ends)[-self.sequences]
        heapq.heappush(self.ends, begins + seconds)
        return begins + seconds


@dataclass(frozen=True)
class Simulated:
    balanced: float  # p99, in times of what a lone request takes
    skewed: float
    spilled: float  # share of the skewed requests
    spilled_evenly: float  # share of requests that each show any image

    @property
    def ratio(self) -> float:
        return self.skewed / self.balanced


def simulate(engines: int, sequences: int, share: float, requests: int = 20_000, seed: int = 0) -> Simulated:
    """A load of so large a share of what all engines can do."""
    due = arrival_times(requests, share * engines * sequences, seed)
    keys = [media_key("", bytes([number])) for number in range(_POOL)]
    owned = [
        next(key for key in keys if rendezvous_order(key, engine_names(engines))[0] == engine) for engine in range(engines)
    ]
    random = np.random.default_rng(seed)
    turns = (owned[number % engines] for number in range(requests))
    halves = (keys[0] if random.random() < 0.5 else keys[int(random.integers(1, _POOL))] for _ in range(requests))
    evenly = (keys[int(random.integers(_POOL))] for _ in range(requests))
    (balanced, _), (skewed, spilled), (_, chance) = (_run(engines, sequences, due, some) for some in (turns, halves, evenly))
    return Simulated(float(np.percentile(balanced, 99)), float(np.percentile(skewed, 99)), spilled, chance)


def _run(engines: int, sequences: int, due: list[float], keys: Iterator[bytes]) -> tuple[list[float], float]:
    """How long each request takes, and the share of those that did not go to their owner."""
    them = [_Engine(sequences) for _ in range(engines)]
    took, spilled = [], 0
    for now, key in zip(due, keys, strict=True):
        found = choose(key, [engine.load(now) for engine in them], sequences)
        spilled += found.spilled
        took.append(them[found.engine].take(now, 1.0) - now)
    return took, spilled / len(took)
