"""How many replicas there should be."""

from types import SimpleNamespace

import pytest

from sightline.errors import ConfigError
from sightline.ray.autoscaling import Policy, replicas_wanted
from sightline.ray.environment import check_environment, environment
from sightline.ray.settings import Scaling

SCALING = Scaling(target_ongoing_requests=10, target_kv_usage=0.8)


@pytest.mark.parametrize(
    ("replicas", "requests", "kv_usage", "waiting", "wanted"),
    [
        (1, 0, 0.0, 0, 0.0),
        (1, 25, 0.1, 0, 2.5),  # requests
        (2, 4, 1.92, 0, 2.4),  # tokens: two that are nearly full
        (2, 4, 1.2, 5, 1.5),  # a queue with pages left is the requests' affair
        (2, 4, 1.7, 5, 3.0),  # no pages left, and a queue: one more
        (4, 8, 0.4, 0, 0.8),  # down
    ],
)
def test_the_greater_need_counts(replicas: int, requests: float, kv_usage: float, waiting: float, wanted: float) -> None:
    assert replicas_wanted(replicas, requests, kv_usage, waiting, SCALING) == pytest.approx(wanted)


def test_the_policy_adds_up_what_replicas_say() -> None:
    policy = Policy(target_ongoing_requests=10, target_kv_usage=0.8)
    metrics = {"kv_usage": {"a": 0.9, "b": 0.94}, "waiting": {"a": 0.0, "b": 0.0}}
    found, state = policy(SimpleNamespace(aggregated_metrics=metrics, current_num_replicas=2, total_num_requests=3))
    assert found == pytest.approx(2.3, abs=0.01) and state == {}
    found, _ = policy(SimpleNamespace(aggregated_metrics=None, current_num_replicas=0, total_num_requests=0))
    assert found == 0


def test_what_ray_must_be_told_before_it_starts() -> None:
    check_environment(environment())
    with pytest.raises(ConfigError, match=r"RAY_SERVE_ENABLE_HA_PROXY must be 1 before Ray starts.*python -m sightline\.ray"):
        check_environment({})
    with pytest.raises(ConfigError, match="RAY_SERVE_THROUGHPUT_OPTIMIZED is 1, but it limits requests to 4 MiB"):
        check_environment(environment() | {"RAY_SERVE_THROUGHPUT_OPTIMIZED": "1"})
