"""One engine process and what belongs to it."""

import asyncio
import sys
import tempfile
import time
from pathlib import Path

import pytest

from server import odd_engine
from server.running import PATIENCE_S, process_exists
from sightline.server.engine_process import engine_process


def test_an_engine_does_not_wait_for_a_busy_api_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Red if it is connected only once the event loop takes a turn: it would load after the API process has read its files."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    command = (sys.executable, odd_engine.__file__, "well", str(tmp_path / "file"))

    async def run() -> int:
        async with engine_process(command, 0.0, lambda message: None) as own:
            end = time.monotonic() + PATIENCE_S
            while any(tmp_path.iterdir()):  # until it is connected; the loop stands still
                assert time.monotonic() < end, "the engine is not connected"
                time.sleep(0.01)
            assert process_exists(own.process.pid)
            return own.process.pid

    assert not process_exists(asyncio.run(run()))
