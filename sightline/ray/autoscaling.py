"""How many replicas there should be: by unfinished requests, and by the tokens that the engines hold for them."""

import math
from typing import Any

from sightline.ray.settings import Scaling


def replicas_wanted(replicas: int, requests: float, kv_usage: float, waiting: float, scaling: Scaling) -> float:
    """`kv_usage`: of all replicas together, so 1.5 is three halves full; `waiting`: answers in the engines' queues.

    Requests ask for as many replicas as have the target of them each, tokens for as many as hold them at the target share. When
    all are that full and answers wait, what waits is not among the tokens yet: then there is one more.
    """
    by_requests = requests / scaling.target_ongoing_requests
    by_tokens = kv_usage / scaling.target_kv_usage
    if waiting and by_tokens >= replicas:
        by_tokens = max(by_tokens, replicas + 1)
    return max(by_requests, by_tokens)


class Policy:
    """For Ray's controller, which makes one from `policy_kwargs`."""

    def __init__(self, **scaling: Any) -> None:
        self._scaling = Scaling(**scaling)

    def __call__(self, context: Any) -> tuple[float, dict[str, Any]]:
        metrics = context.aggregated_metrics or {}
        kv_usage, waiting = (sum((metrics.get(name) or {}).values()) for name in ("kv_usage", "waiting"))
        replicas = max(1, context.current_num_replicas)
        wanted = replicas_wanted(replicas, context.total_num_requests, kv_usage, waiting, self._scaling)
        return math.ceil(wanted * 1000) / 1000, {}
