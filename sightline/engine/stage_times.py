"""What encoding images took, told to the clocks of the requests they were for."""

from collections.abc import Iterable, Mapping

from sightline.engine.encoder import EncodeResult
from sightline.engine.sequence_output import SequenceOutput
from sightline.schedule.state import Chunk, Sequence
from sightline.timing import StageClock

MOST_UNUSED = 4096  # items of the side stream whose times are kept for who will use them


class StageTimes:
    def __init__(self) -> None:
        self.unused: dict[bytes, EncodeResult] = {}  # of items that the side stream encoded and nobody used yet, by key
        self._in_line: list[StageClock] = []  # whose images were encoded since a step was last submitted

    def note_encoded(self, result: EncodeResult, running: Iterable[Sequence], answers: Mapping[int, SequenceOutput]) -> None:
        """In line with a step, its users are known; from the side stream, the first who uses it is told."""
        if not result.in_line:
            self.unused |= dict.fromkeys(result.encoded, result)
            while len(self.unused) > MOST_UNUSED:  # whose requests are gone
                del self.unused[next(iter(self.unused))]
            return
        for key in result.encoded:
            self.unused.pop(key, None)  # it was encoded once before, and is gone unused
        keys = set(result.encoded)
        for sequence in running if keys else ():
            fresh = {entry.key for entry in sequence.pinned.values()} & keys
            if fresh:
                answer = answers[sequence.id]
                answer.encoded_items += len(fresh)
                _add(answer.clock, result)
                self._in_line.append(answer.clock)

    def take_in_line(self) -> list[StageClock]:
        """Who is told of the tower's time that comes with the step submitted now."""
        taken, self._in_line = self._in_line, []
        return taken

    def tell_users(self, chunks: Iterable[Chunk], answers: Mapping[int, SequenceOutput]) -> None:
        """Items of the side stream are told to the first who uses them; those encoded together once."""
        for chunk in chunks if self.unused else ():
            told: list[EncodeResult] = []
            answer = answers[chunk.sequence.id]
            for entry in chunk.sequence.pinned.values():
                result = self.unused.pop(entry.key, None)
                if result is None:
                    continue
                answer.encoded_items += 1
                if not any(result is other for other in told):
                    told.append(result)
                    _add(answer.clock, result)


def _add(clock: StageClock, result: EncodeResult) -> None:
    for stage, seconds in result.seconds.items():
        clock.add(stage, seconds)
