"""What the engine sees of its ranks without asking: memory that all of them share, in which each counts what it does.

    rank 0   beats │ calls        beats   a thread counts up, whatever the rank is at: one that is stopped does not
    rank 1   beats │ calls        calls   of what ranks say to each other: all make the same ones, so that who has fewest
    …                                     is the one that the others wait for

No torch.
"""

import mmap
import threading
import time
from dataclasses import dataclass
from pathlib import Path

_BEAT_S = 0.25
_NUMBER = 8  # bytes


@dataclass(frozen=True)
class RankCounts:
    beats: int
    calls: int


class RankBoard:
    def __init__(self, path: str, ranks: int) -> None:
        """`path`: of a file with so many bytes as `size_for` says, zeros."""
        with Path(path).open("r+b") as file:
            self._numbers = memoryview(mmap.mmap(file.fileno(), self.size_for(ranks))).cast("Q")
        self._ranks = ranks

    @staticmethod
    def size_for(ranks: int) -> int:
        return 2 * _NUMBER * ranks

    def count_call(self, rank: int) -> None:
        self._numbers[2 * rank + 1] += 1

    def read(self) -> list[RankCounts]:
        return [RankCounts(*self._numbers[2 * rank : 2 * rank + 2]) for rank in range(self._ranks)]

    def start_beating(self, rank: int) -> None:
        """For the rest of this process's life."""

        def beat() -> None:
            while True:
                time.sleep(_BEAT_S)
                self._numbers[2 * rank] += 1

        threading.Thread(target=beat, name="beat", daemon=True).start()


class RankWatch:
    """The engine's look at the board: since when nothing has advanced, and whose fault it is."""

    def __init__(self, board: RankBoard, now: float) -> None:
        self._board = board
        self._counts = board.read()
        self._beaten = [now] * len(self._counts)  # when each was last seen to
        self._advanced = self._looked = now

    def begin(self, now: float) -> None:
        """Something is asked of the ranks, or was heard of them."""
        self._advanced = now

    def hang(self, now: float, limit_s: float) -> str | None:
        """Says which rank hangs, once nothing has advanced for so long. To be called often."""
        before, self._counts = self._counts, self._board.read()
        if now - self._looked > limit_s / 2:  # this process was stopped, and perhaps the ranks with it: they get another chance
            self._advanced, self._beaten = now, [now] * len(self._counts)
        self._looked = now
        for rank, (old, new) in enumerate(zip(before, self._counts, strict=True)):
            if new.beats != old.beats:
                self._beaten[rank] = now
            if new.calls != old.calls:
                self._advanced = now
        if now - self._advanced <= limit_s:
            return None
        return self._sentence(now, limit_s)

    def _sentence(self, now: float, limit_s: float) -> str:
        ranks = len(self._counts)
        silent = [rank for rank in range(ranks) if now - self._beaten[rank] > limit_s / 2]
        most = max(counts.calls for counts in self._counts)
        behind = [rank for rank, counts in enumerate(self._counts) if counts.calls < most]
        age = now - self._advanced
        if silent:
            return f"{_names(silent, ranks)} for {age:.1f} s, and no sign of life"
        if behind:
            return f"{_names(behind, ranks)} for {age:.1f} s; the others wait for what it was to say"
        return f"{_names(list(range(ranks)), ranks)} for {age:.1f} s; all of them wait at the same place"


def _names(ranks: list[int], size: int) -> str:
    some = " and ".join(map(str, ranks))
    return f"Nothing has advanced on rank{'s' if len(ranks) > 1 else ''} {some} of {size}"
