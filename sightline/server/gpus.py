"""Which GPUs each of several engines gets. No torch: the kernel's list of devices is enough."""

import os
import re
from pathlib import Path

from sightline.config import Config
from sightline.errors import ConfigError

VARIABLE = "CUDA_VISIBLE_DEVICES"


def visible_gpus() -> list[str]:
    """As the variable names them, or their numbers."""
    named = os.environ.get(VARIABLE)
    if named is not None:
        return [name for name in named.split(",") if name.strip()]
    devices = [path.name for path in Path("/dev").glob("nvidia*") if re.fullmatch(r"nvidia\d+", path.name)]
    return sorted((name.removeprefix("nvidia") for name in devices), key=int)


def gpus_of_engines(config: Config) -> list[str | None]:
    """What each engine process may see, for its variable; None: what this one sees, where all are given the same device."""
    engines, each = config.server.data_parallel_size, config.engine.tensor_parallel_size
    there = visible_gpus() if config.model.device in ("auto", "cuda") else []
    if engines == 1 or not there:
        return [None] * engines
    if engines * each > len(there):
        raise ConfigError(
            f"data_parallel_size is {engines} with {each} GPUs each, but this machine shows {len(there)}; to put several "
            "engines on one GPU, name it with device, such as cuda:0, and lower gpu_memory_utilization."
        )
    return [",".join(there[first * each : (first + 1) * each]) for first in range(engines)]
