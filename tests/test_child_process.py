"""What ties a process to the one that started it. That nothing outlives it: tests/server/test_orphans.py."""

import os
import threading
from pathlib import Path

import pytest

from sightline import child_process


# Red if an engine takes commands from whoever was first to make a folder of the name on its command line.
def test_a_folder_of_another_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    child_process._await_folder(tmp_path)
    owner = os.getuid()
    monkeypatch.setattr(child_process.os, "getuid", lambda: owner + 1)
    with pytest.raises(PermissionError, match="belongs to another user"):
        child_process._await_folder(tmp_path)


# Red if a server cannot start where temporary files have a long path, as on some clusters.
def test_a_long_path_of_temporary_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_process.tempfile, "tempdir", str(tmp_path / ("long" * 40)))
    assert child_process.name_of_socket_folder().parent == Path("/tmp")
    monkeypatch.setattr(child_process.tempfile, "tempdir", "/var/tmp")
    assert child_process.name_of_socket_folder().parent == Path("/var/tmp")


# Red if an engine that is faster than its API process gives up, or connects to what is not there.
def test_a_folder_that_is_not_there_yet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, looked = tmp_path / "later", threading.Event()

    def pause(_: float) -> None:
        looked.set()
        folder.mkdir()

    monkeypatch.setattr(child_process.time, "sleep", pause)
    child_process._await_folder(folder)
    assert looked.is_set() and folder.exists()
