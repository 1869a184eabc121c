"""Tests of an engine run twice: step by step; and with steps launched before the last one is read, and images
encoded asynchronously.

A CPU is done with a step when it is launched, and would always be read before the next launch. A device that is never done so
soon is the other extreme: each step takes its newest tokens from where the step before has left them.
"""

import pytest

from engine import harness
from sightline.worker.readout import Readout

BOTH_WAYS = {"test_equality", "test_lifecycle", "test_structured", "test_counting", "test_hybrid"}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if metafunc.module.__name__.rpartition(".")[2] in BOTH_WAYS:
        metafunc.parametrize("overlap", [False, True], ids=["in turn", "overlapped"], indirect=True)


@pytest.fixture(autouse=True)  # else pytest leaves it out where a test does not name it
def overlap(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    way = getattr(request, "param", None)  # none: the test's file is not among those that run twice
    if way is not None:
        monkeypatch.setattr(harness, "OVERLAP", way)
        monkeypatch.setattr(harness, "ASYNC_ENCODE", way)
    if way:
        monkeypatch.setattr(Readout, "ready", property(lambda _: False))
    return bool(way)
