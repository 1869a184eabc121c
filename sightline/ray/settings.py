"""How many replicas there are, and what each takes. Ray is not imported here: it reads its environment when it is."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Scaling:
    min_replicas: int = 1
    max_replicas: int = 1
    target_ongoing_requests: float = 32.0  # of a replica; about as many as it decodes well together
    target_kv_usage: float = 0.8  # share of the pages of keys and values; above it, requests soon wait for others to end
    upscale_delay_s: float = 10.0
    downscale_delay_s: float = 300.0
    look_back_period_s: float = 20.0  # longer than the 10 s between reports of replicas


@dataclass(frozen=True)
class Resources:
    """What a replica takes of the cluster."""

    num_cpus: float = 1.0
    num_gpus: float | None = None  # by default one for each engine and rank, and none where the model runs on a CPU
    runtime_env: Mapping[str, Any] | None = None
