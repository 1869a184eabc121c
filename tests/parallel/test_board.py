"""Which rank hangs, as the engine judges it from the memory that ranks share."""

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sightline.parallel.board import RankBoard, RankWatch

LIMIT_S = 3.0


@pytest.fixture
def board(tmp_path: Path) -> Iterator[RankBoard]:
    path = tmp_path / "board"
    path.write_bytes(bytes(RankBoard.size_for(3)))
    yield RankBoard(str(path), 3)


def alive(board: RankBoard, *ranks: int) -> None:
    """A heartbeat of theirs."""
    for rank in ranks:
        board._numbers[2 * rank] += 1


def watched(board: RankBoard, ranks: tuple[int, ...], seconds: int) -> str | None:
    """What is said after so many seconds, in which those ranks live and nothing advances."""
    watch, found = RankWatch(board, 0.0), None
    for now in range(1, seconds + 1):
        alive(board, *ranks)
        found = watch.hang(float(now), LIMIT_S)
    return found


def test_who_waits_for_whom(board: RankBoard) -> None:
    """Red when those are blamed that wait, or when a rank that lives but lags is not found."""
    for rank in (0, 1, 2, 0, 2):
        board.count_call(rank)
    assert watched(board, (0, 1, 2), 3) is None
    assert (
        watched(board, (0, 1, 2), 4) == "Nothing has advanced on rank 1 of 3 for 4.0 s; the others wait for what it was to say"
    )
    assert watched(board, (0, 1), 4) == "Nothing has advanced on rank 2 of 3 for 4.0 s, and no sign of life"
    board.count_call(1)
    assert "ranks 0 and 1 and 2 of 3 for 4.0 s; all of them" in str(watched(board, (0, 1, 2), 4))


def test_slow_is_not_hung(board: RankBoard) -> None:
    """Red when a step that takes long is given up although its layers go on, or an engine that was stopped blames its ranks."""
    watch = RankWatch(board, 0.0)
    for now in range(1, 20):
        if now % 2:
            board.count_call(1)
        assert watch.hang(float(now), LIMIT_S) is None
    assert watch.hang(40.0, LIMIT_S) is None
    assert watch.hang(43.5, LIMIT_S) is None  # looks too seldom to tell
    for now in (44.0, 45.0, 46.0):
        watch.begin(45.0)
        assert watch.hang(now, LIMIT_S) is None


def test_beats_of_another_process(tmp_path: Path) -> None:
    path = tmp_path / "board"
    path.write_bytes(bytes(RankBoard.size_for(2)))
    program = f"from sightline.parallel.board import RankBoard; RankBoard({str(path)!r}, 2).start_beating(1); input()"
    child = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE)
    try:
        board, end = RankBoard(str(path), 2), time.monotonic() + 20
        while board.read()[1].beats < 2 and time.monotonic() < end:
            time.sleep(0.05)
        assert board.read()[1].beats >= 2 and board.read()[0].beats == 0
    finally:
        child.kill()
        child.wait()
