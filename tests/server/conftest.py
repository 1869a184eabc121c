"""One server for all tests that do not harm it."""

from collections.abc import Iterator

import pytest

from server.running import RunningServer, running


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with running(tmp_path_factory.mktemp("server"), "--served-model-name", "sightline-embedded", "other-name") as made:
        yield made
