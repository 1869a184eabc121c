"""Tests of an engine run twice: step by step; and with steps launched before the last one is read, and images encoded aside.

A CPU is done with a step when it is launched, and would always be read before the next launch. A device that is never done so
soon is the other extreme: each step takes its newest tokens from where the step before has left them.
"""

import pytest

from engine import harness
from sightline.run.readout import Readout

BOTH_WAYS = {"test_equality", "test_lifecycle", "test_structured", "test_counting"}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if metafunc.module.__name__.rpartition(".")[2] in BOTH_WAYS:
        metafunc.fixturenames.append("overlap")
        metafunc.parametrize("overlap", [False, True], ids=["in turn", "overlapped"], indirect=True)


@pytest.fixture
def overlap(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setattr(harness, "OVERLAP", request.param)
    monkeypatch.setattr(harness, "ENCODE_ASIDE", request.param)
    if request.param:
        monkeypatch.setattr(Readout, "ready", property(lambda _: False))
    return bool(request.param)
