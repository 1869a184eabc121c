"""The fault tests of engines with two ranks: one that is killed or hangs, with requests in every stage."""

from collections.abc import Iterator

import pytest

from server import test_faults_engine
from server.ranks import tests_of, two_ranks
from server.running import RunningServer

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def ranks() -> Iterator[None]:
    with two_ranks():
        yield


@pytest.fixture(scope="module")
def fragile(tmp_path_factory: pytest.TempPathFactory, ranks: None) -> Iterator[RunningServer]:
    # A picture is waited for while the next engine and its ranks start.
    with test_faults_engine.fragile_server(tmp_path_factory.mktemp("fragile"), "--fetch-timeout-s", "120") as made:
        yield made


globals().update(tests_of(test_faults_engine))
