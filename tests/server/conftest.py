"""One server for all tests that do not harm it, and one for those that try."""

import contextlib
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from server.running import RunningServer, running


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with running(tmp_path_factory.mktemp("server"), "--served-model-name", "sightline-embedded", "other-name") as made:
        yield made


@contextlib.contextmanager
def sturdy_server(folder: Path) -> Iterator[RunningServer]:
    """A server with narrow limits, to be maltreated. It must be as good as new after each test."""
    flags = (
        "--header-timeout-s 4 --body-timeout-s 4 --read-timeout-s 2 --max-request-mb 2 --max-inflight-mb 6 "
        "--default-max-tokens 8 --max-num-seqs 8 --max-num-batched-tokens 256 --kv-cache-gb 0.1 --embedding-cache-gb 0.05 "
        "--allow-private-media --allowed-media-ports"
    )
    allowed, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (250, most))  # as on machines with a low limit: it is expected to raise it
    with contextlib.ExitStack() as stack:
        try:
            made = stack.enter_context(running(folder, *flags.split()))
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, most))
        yield made


@pytest.fixture(scope="session")
def sturdy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with sturdy_server(tmp_path_factory.mktemp("sturdy")) as made:
        yield made
