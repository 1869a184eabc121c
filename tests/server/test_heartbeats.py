"""When an engine is judged to hang, by a clock that the test moves."""

import asyncio
import socket
from collections.abc import Callable
from dataclasses import dataclass

from sightline.config import Config
from sightline.engine.messages import IDLE, Heartbeat, encode
from sightline.server.engine_client import EngineClient, EngineGone, EngineState, UpdateQueue
from sightline.server.engine_process import EngineProcess
from sightline.server.heartbeats import Heartbeats
from sightline.server.observer import Observer

LIMIT_S = 10.0


@dataclass
class Patient:
    """An engine as its judge sees it; `now` is the time."""

    now: float = 100.0

    def __post_init__(self) -> None:
        self.judge = Heartbeats(LIMIT_S, lambda: self.now)
        self._engine = socket.socket(fileno=socket.dup(self.judge.file))
        self._engine.setblocking(False)

    def beat(self, what: str, seconds: float) -> None:
        self._engine.send(encode(Heartbeat(what, seconds)))

    def after(self, seconds: float, what: str | None = None, age: float = 0.0) -> str | None:
        """The verdict then, judged once a second on the way; with heartbeats if it is said what they say."""
        for _ in range(int(seconds)):
            self.now += 1.0
            if what is not None:
                self.beat(what, age)
            verdict = self.judge.hang()
        return verdict

    def end(self) -> None:
        self.judge.close()
        self._engine.close()


def judged(what: Callable[[Patient], None]) -> None:
    async def run() -> None:
        patient = Patient()
        try:
            what(patient)
        finally:
            patient.end()

    asyncio.run(run())


# Red if an engine that never said anything, or one that was idle, may be silent.
def test_silence() -> None:
    def run(patient: Patient) -> None:
        assert patient.after(10) is None
        verdict = patient.after(1)
        assert verdict is not None and "no heartbeat for 11.0 s (engine_timeout_s is 10)" in verdict
        assert "'start of the process'" in verdict
        assert patient.after(1, IDLE) is None
        assert patient.after(10) is None
        verdict = patient.after(1)
        assert verdict is not None and "no heartbeat for 11.0 s" in verdict and "'idle'" in verdict

    judged(run)


# Red if a process that lives is thought to work, or if one that has had nothing to do for long is thought to hang.
def test_the_age_of_the_work() -> None:
    def run(patient: Patient) -> None:
        assert patient.after(1, "step", age=10.0) is None
        verdict = patient.after(1, "step", age=10.5)
        assert verdict is not None and "no progress for 10.5 s (engine_timeout_s is 10) at 'step'" in verdict
        assert patient.after(1, "step", age=0.1) is None
        assert patient.after(1, IDLE, age=1e6) is None

    judged(run)


# Red if what lay unread while this process was busy or stopped counts as never sent, or its own absence as the engine's.
def test_a_judge_that_was_away() -> None:
    def run(patient: Patient) -> None:
        patient.beat(IDLE, 0.0)
        patient.now += 50.0
        assert patient.judge.hang() is None
        patient.now += 50.0  # both were stopped
        assert patient.judge.hang() is None
        assert patient.after(10) is None
        assert patient.after(1) is not None

    judged(run)


# Red if an engine blocks, or ends, because nobody reads its heartbeats for a while.
def test_heartbeats_that_nobody_reads() -> None:
    def run(patient: Patient) -> None:
        for _ in range(100_000):
            try:
                patient.beat(IDLE, 0.0)
            except BlockingIOError:
                break
        else:
            raise AssertionError("the buffer has no end")
        assert patient.after(1) is None
        patient.beat("step", 1.0)
        assert patient.after(1) is None and patient.judge.last == Heartbeat("step", 1.0)

    judged(run)


class Unkillable:
    """A process that waits for a driver: a kill has no effect until that returns."""

    killed = False

    def kill(self) -> None:
        self.killed = True


class Hanging:
    interval_s = 0.0

    def hang(self) -> str:
        return "no progress for 11 s at 'step'"


# Red if those who wait are told, and /ready says no, only once a process that is killed has ended.
def test_a_process_that_does_not_die() -> None:
    async def run() -> None:
        client = EngineClient(Config(), Observer(), lambda _: None, lambda _: None, lambda _: None)
        client.state = EngineState.READY
        waiting = client._answers[1] = UpdateQueue({1: 0}, 1, client)
        process = Unkillable()
        await client._end_hang(EngineProcess(process, None, Hanging()))  # type: ignore[arg-type]
        assert process.killed and client.state is EngineState.HUNG
        assert client.condition == "The engine hangs and is being killed: no progress for 11 s at 'step'."
        try:
            await anext(waiting.batches())
        except EngineGone:
            return
        raise AssertionError("a request waits for an engine that hangs")

    asyncio.run(run())
