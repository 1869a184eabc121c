"""What an engine process says of itself: what it is at, and since when that has not advanced."""

import importlib
import os
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from sightline.child_process import imports_advance
from sightline.engine import liveness as module
from sightline.engine.liveness import Liveness, LoadClock, start_heartbeat
from sightline.engine.messages import IDLE, Heartbeat, decode_heartbeat


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """The time is its only entry."""
    now = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    yield now


# Red if work keeps the age of what was before it, or does not lose its own when it advances.
def test_ages(clock: list[float]) -> None:
    liveness = Liveness()
    clock[0] = 5.0
    assert liveness.state() == (IDLE, 5.0)
    liveness.begin("step")
    assert liveness.state() == ("step", 0.0)
    clock[0] = 9.0
    assert liveness.state() == ("step", 4.0)
    liveness.touch()
    clock[0] = 10.0
    assert liveness.state() == ("step", 1.0)
    liveness.idle()
    assert liveness.state() == (IDLE, 0.0)


# Red if a stage of the start is timed but not told.
def test_stages_of_a_start(clock: list[float]) -> None:
    liveness = Liveness("load: imports")
    times = LoadClock(liveness)
    clock[0] = 3.0
    with times.stage("weights"):
        assert liveness.state() == ("load: weights", 0.0)
    assert set(times.seconds) == {"weights"}


# Red if thousands of modules from a slow disk look like one that never comes.
def test_imports_advance(clock: list[float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a_module_of_this_test.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    liveness, finders = Liveness("load: imports"), list(sys.meta_path)
    clock[0] = 7.0
    with imports_advance(liveness.touch):
        importlib.import_module("a_module_of_this_test")
    assert liveness.state() == ("load: imports", 0.0)
    assert sys.meta_path == finders


# Red if a thread that works keeps the heartbeat from coming, or a parent that is gone goes unnoticed.
def test_the_heartbeat(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    liveness, orphaned, parent = Liveness(), threading.Event(), os.getppid()
    with ours, theirs:
        ours.settimeout(60)
        start_heartbeat(liveness, theirs, parent, orphaned.set)
        assert decode_heartbeat(ours.recv(4096)).idle
        liveness.begin("step")
        while (heard := decode_heartbeat(ours.recv(4096))).idle:
            pass
        assert isinstance(heard, Heartbeat) and heard.what == "step"
        assert not orphaned.is_set()
        monkeypatch.setattr(module.os, "getppid", lambda: parent + 1)
        assert orphaned.wait(60)
