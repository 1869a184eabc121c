"""The fault tests of servers with two ranks: clients that leave, accidents, many streams, damaged requests, orphans.

Left out: an engine that has no model, and orphans before there is a worker.
"""

from collections.abc import Iterator

import pytest

from server import test_faults, test_faults_leaving, test_faults_load, test_faults_malformed, test_orphans
from server.conftest import sturdy_server
from server.ranks import tests_of, two_ranks
from server.running import RunningServer, running

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def ranks() -> Iterator[None]:
    with two_ranks():
        yield


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, ranks: None) -> Iterator[RunningServer]:
    with running(tmp_path_factory.mktemp("server"), "--served-model-name", "sightline-embedded") as made:
        yield made


@pytest.fixture(scope="module")
def sturdy(tmp_path_factory: pytest.TempPathFactory, ranks: None) -> Iterator[RunningServer]:
    with sturdy_server(tmp_path_factory.mktemp("sturdy")) as made:
        yield made


@pytest.fixture(scope="module")
def fragile(tmp_path_factory: pytest.TempPathFactory, ranks: None) -> Iterator[RunningServer]:
    with running(tmp_path_factory.mktemp("fragile"), "--max-restarts", "9", "--restart-backoff-s", "0.05") as made:
        yield made


globals().update(
    tests_of(
        test_faults,
        test_faults_leaving,
        test_faults_load,
        test_faults_malformed,
        test_orphans,
        but=("test_an_orphan_that_keeps_the_lock", "test_nothing_outlives_a_server_that_is_killed"),
    )
)
