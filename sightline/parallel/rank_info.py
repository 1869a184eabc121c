"""Where a process stands among those that hold one model together. No torch."""

from dataclasses import dataclass


@dataclass(frozen=True)
class RankInfo:
    """Which rank a process is, and where all of them meet."""

    rank: int
    size: int
    meeting: str  # a file that only these processes use
    board: str | None = None  # likewise, for board.py
