"""These tests run where Ray is: test_in_ray.py starts them in an environment that has it."""

import os
import signal
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

HAS_RAY = find_spec("ray") is not None
if HAS_RAY:
    from sightline.ray.environment import set_environment

    # Before Ray is imported. Short periods, so that a test need not wait for what takes minutes in a cluster.
    os.environ |= {
        "RAY_AUTH_MODE": "disabled",  # a token would be written to the home folder
        "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "1",
        "RAY_SERVE_REPLICA_AUTOSCALING_METRIC_PUSH_INTERVAL_S": "1",
        "RAY_SERVE_HAPROXY_METRICS_PORT": "19101",
        "RAY_SERVE_HAPROXY_STATS_PORT": "18404",
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    set_environment(only_this_machine=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not HAS_RAY:
        reason = (
            "Ray is not in this environment; ./run test --all runs these in one of their own (tests/scale_out/test_in_ray.py)"
        )
        for item in items:
            if "scale_out/inside" in str(item.path):
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def ray_here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Ray on this machine alone. It has as many processors as a test says that it needs."""
    import ray

    ray.init(num_cpus=16, include_dashboard=False, log_to_driver=False, logging_level="warning")
    yield ray
    started = descendants(os.getpid())
    ray.shutdown()
    end_all(started)


def descendants(pid: int) -> set[int]:
    parents: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents.setdefault(int(stat.read_text().rsplit(")", 1)[1].split()[1]), []).append(int(stat.parent.name))
        except OSError:
            continue
    found, queue = set[int](), [pid]
    while queue:
        for child in parents.get(queue.pop(), ()):
            found.add(child)
            queue.append(child)
    return found


def end_all(pids: set[int], patience_s: float = 10.0) -> None:
    """Some of Ray's own outlive ray.shutdown()."""
    end = time.monotonic() + patience_s
    while any(Path(f"/proc/{pid}").exists() for pid in pids) and time.monotonic() < end:
        time.sleep(0.1)
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
