"""Ranks that somebody else has started: torchrun, which tells each process who it is by the environment. No torch.

```
torchrun --nproc-per-node 4 -m sightline serve MODEL      rank 0 serves; the others hold a worker each (engine/launched.py)
```
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from sightline.config import Config
from sightline.errors import ConfigError


@dataclass(frozen=True)
class Launch:
    """Of a process of torchrun's; its store, which ends with torchrun, is at that address."""

    rank: int
    size: int
    address: str
    port: int
    one_machine: bool = True

    @classmethod
    def read(cls, environment: Mapping[str, str]) -> "Launch | None":
        """None: not torchrun's, or alone."""
        if "TORCHELASTIC_RUN_ID" not in environment:
            return None
        size = int(environment["WORLD_SIZE"])
        if size == 1:
            return None
        return cls(
            rank=int(environment["RANK"]),
            size=size,
            address=environment["MASTER_ADDR"],
            port=int(environment["MASTER_PORT"]),
            one_machine=environment["LOCAL_WORLD_SIZE"] == environment["WORLD_SIZE"],
        )

    def applied_to(self, config: Config) -> Config:
        """As many ranks as there are processes, or a ConfigError."""
        if not self.one_machine:
            raise ConfigError(f"torchrun started {self.size} processes on several machines, but all must be on one.")
        if config.server.data_parallel_size > 1:
            engines = config.server.data_parallel_size
            raise ConfigError(f"data_parallel_size is {engines}, but under torchrun there is one engine.")
        chosen = config.engine.tensor_parallel_size
        if chosen not in (1, self.size):
            raise ConfigError(f"tensor_parallel_size is {chosen}, but torchrun started {self.size} processes.")
        return dataclasses.replace(config, engine=dataclasses.replace(config.engine, tensor_parallel_size=self.size))
