"""What stages took, told to the clocks of the requests they were for."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from sightline.engine.answers import Answer
from sightline.run.device_timer import DeviceTimer
from sightline.run.runner import Encoded
from sightline.schedule.state import Chunk, Step
from sightline.timing import StageClock

MOST_UNUSED = 4096  # items encoded aside whose times are kept for who will use them


@dataclass(frozen=True)
class DeviceTime:
    """Known only after the device is done."""

    timer: DeviceTimer
    clocks: list[StageClock]
    stage: str

    def tell(self) -> None:
        for clock in self.clocks:
            clock.add(self.stage, self.timer.seconds)


@dataclass
class StageTimes:
    """Times that nobody could read yet."""

    pending: list[DeviceTime] = field(default_factory=list)  # of what was launched since a step was last read
    aside: dict[bytes, Encoded] = field(default_factory=dict)  # of items encoded aside and not used yet, by key

    def note_encode(self, step: Step, result: Encoded, answers: Mapping[int, Answer]) -> None:
        """Tells all who needed what a step encoded. `answers` by sequence id."""
        keys = {encode.entry.key for encode in step.encodes if not encode.from_host}
        clocks = []
        for chunk in step.chunks:
            fresh = {entry.key for entry in chunk.sequence.pinned.values()} & keys
            if fresh:
                answer = answers[chunk.sequence.id]
                answer.encoded_items += len(fresh)
                clocks.append(answer.clock)
        for clock in clocks:
            for stage, seconds in result.clock.seconds.items():
                clock.add(stage, seconds)
        if result.tower is not None and clocks:
            self.pending.append(DeviceTime(result.tower, clocks, "encode"))

    def note_aside(self, step: Step, beside: Encoded) -> None:
        """Keeps what was encoded aside for who will use it."""
        for encode in step.encodes:
            if encode.aside and encode.entry.key not in beside.failures:
                self.aside[encode.entry.key] = beside
            elif not encode.from_host:  # it was encoded once before, and is gone unused
                self.aside.pop(encode.entry.key, None)
        while len(self.aside) > MOST_UNUSED:  # whose requests are gone
            del self.aside[next(iter(self.aside))]

    def tell_users(self, chunks: Iterable[Chunk], answers: Mapping[int, Answer]) -> None:
        """Items that were encoded aside are told to the first who uses them; by then the device is done with them."""
        for chunk in chunks if self.aside else ():
            told: list[Encoded] = []
            answer = answers[chunk.sequence.id]
            for entry in chunk.sequence.pinned.values():
                result = self.aside.pop(entry.key, None)
                if result is None:
                    continue
                answer.encoded_items += 1
                if not any(result is other for other in told):
                    told.append(result)
                    for stage, seconds in result.clock.seconds.items():
                        answer.clock.add(stage, seconds)
                    if result.tower is not None:
                        answer.clock.add("encode", result.tower.seconds)

    def take(self) -> list[DeviceTime]:
        """What is known when the step that was launched last is done."""
        taken, self.pending = self.pending, []
        return taken
