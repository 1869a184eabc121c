"""Who carries out steps and encodes: a worker in this process, or one in a process of its own (engine/process_executor.py).

```
submit(StepInput) ─► [submit_masks] ─► ready? ─► collect() ─► StepOutput        in the order of submission
encode(EncodeInput) ─► poll_encodes() ─► EncodeOutput …                         in any order
```
"""

from collections.abc import Callable
from typing import Protocol

import torch

from sightline.errors import ConfigError
from sightline.worker.facts import WorkerFacts
from sightline.worker.step_input import (
    EncodeInput,
    EncodeItem,
    EncodeOutput,
    GrammarMasks,
    StepInput,
    StepOutput,
    WorkerFailure,
)
from sightline.worker.worker import Worker


class Executor(Protocol):
    facts: WorkerFacts

    def submit(self, step: StepInput) -> WorkerFailure | None:
        """Hands a step over. A failure that is known at once is returned, and the step has no output; a later one is in it."""
        ...

    def submit_masks(self, masks: GrammarMasks) -> WorkerFailure | None:
        """What the step submitted last waits for, if it has masked rows. Failures as for `submit`."""
        ...

    @property
    def ready(self) -> bool:
        """Whether `collect` would not wait; only asked while an output is outstanding."""
        ...

    def collect(self) -> StepOutput:
        """The output of the oldest step; waits for the device."""
        ...

    def encode(self, given: EncodeInput) -> None: ...

    def poll_encodes(self, wait: bool) -> list[EncodeOutput]:
        """What has become of encodes since this was last asked: of those in line with steps all, of those on the side stream
        what is done; with `wait`, all of them."""
        ...

    def embed(self, item: EncodeItem) -> torch.Tensor | None:
        """Embeddings of one item, [rows, width], past the arena; None if the GPU cannot decode it."""
        ...

    def capture_graphs(self, advance: Callable[[], None]) -> None:
        """`advance` is called now and then while it lasts."""
        ...

    @property
    def captured_graphs(self) -> int: ...

    @property
    def gpu_bytes(self) -> int:
        """What torch has taken from the GPU."""
        ...

    def give_memory_back(self) -> None: ...

    def check_alive(self) -> None:
        """Raises if what computes is gone; asked now and then while nothing is under way."""
        ...

    def close(self) -> None: ...


class LocalExecutor:
    """The worker is in this process: no copy, no hop."""

    def __init__(self, worker: Worker, facts: WorkerFacts) -> None:
        self.worker, self.facts = worker, facts
        # What has no cost of its own is not wrapped either.
        self.submit, self.submit_masks, self.collect = worker.submit, worker.submit_masks, worker.collect
        self.encode, self.poll_encodes, self.embed = worker.encodes.encode, worker.encodes.poll, worker.encodes.embed

    @property
    def ready(self) -> bool:
        return self.worker.ready

    def capture_graphs(self, advance: Callable[[], None]) -> None:
        self.worker.capture_graphs(advance)

    @property
    def captured_graphs(self) -> int:
        return self.worker.captured_graphs

    @property
    def gpu_bytes(self) -> int:
        return self.worker.gpu_bytes

    def give_memory_back(self) -> None:
        self.worker.give_memory_back()

    def check_alive(self) -> None:
        """It is here."""

    def close(self) -> None:
        self.worker.close()


def local_worker(executor: Executor) -> Worker:
    """For who must reach into the device's side: measurements, tests."""
    if not isinstance(executor, LocalExecutor):
        raise ConfigError("worker_process is on: the model is in another process and cannot be reached from here.")
    return executor.worker
