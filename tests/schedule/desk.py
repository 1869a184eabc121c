"""A desk to hand requests to: the simulator, driven one request at a time, for tests of single decisions."""

from collections.abc import Callable
from dataclasses import replace

from schedule.fake_runner import SimulatedMemory
from schedule.requests import Piece, make_request
from schedule.simulator import Arrival, Simulator, Workload
from sightline.schedule.state import Limits, Sequence, Status, Step

LIMITS = Limits(max_sequences=8, max_tokens=64, max_patches=1000, lookahead_patches=0, starvation_steps=1000)
MEMORY = SimulatedMemory(pages=60, page_size=4, blocks=40)

Change = dict[str, int]


def text(count: int, first: int = 2) -> tuple[int, ...]:
    """Tokens that are the same in no other text with another `first`."""
    return tuple(range(100 * first, 100 * first + count))


class Desk:
    """A simulator to which requests are handed one by one."""

    def __init__(self, limits: Change | None = None, memory: Change | None = None) -> None:
        workload = Workload(replace(LIMITS, **(limits or {})), replace(MEMORY, **(memory or {})), (), end_token=None)
        self.simulator = Simulator(workload, pixel_steps=1)
        self.schedule = self.simulator.schedule

    def add(self, *pieces: Piece, max_tokens: int = 4, priority: int = 0, n: int = 1, salt: str = "") -> list[Sequence]:
        arrival = Arrival(0, make_request(pieces), max_tokens, priority, salt, n)
        request_id = self.simulator.add(arrival)
        assert request_id is not None
        return self.simulator.requests[request_id]

    def one(self, *pieces: Piece, max_tokens: int = 4, priority: int = 0, salt: str = "") -> Sequence:
        return self.add(*pieces, max_tokens=max_tokens, priority=priority, salt=salt)[0]

    def step(self) -> Step:
        return self.simulator.step()

    def chunks(self) -> list[tuple[Sequence, int, int]]:
        """What the next step computes."""
        return [(chunk.sequence, chunk.start, chunk.count) for chunk in self.step().chunks]

    def until(self, done: Callable[[], bool], most: int = 500) -> int:
        """Steps until something is so."""
        for count in range(most):
            if done():
                return count
            self.step()
        raise AssertionError(f"not so after {most} steps")

    def finish(self) -> None:
        self.until(lambda: not self.schedule.has_work)
        self.simulator.check_end()


def running(sequence: Sequence) -> Callable[[], bool]:
    return lambda: sequence.status is Status.RUNNING
