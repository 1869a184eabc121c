"""Who waited and ran before a step of the simulator, to check what the plan did to them."""

from typing import TYPE_CHECKING

from sightline.schedule.state import Status

if TYPE_CHECKING:
    from schedule.simulator import Simulator


class Before:
    """Who waited and ran before a step, to check what the plan did to them."""

    def __init__(self, simulator: "Simulator") -> None:
        schedule = simulator.schedule
        self.waiting = [sequence for sequence in schedule.waiting if sequence.may_start]
        self.running = list(schedule.running)
        self.boosted = {s.id for s in (*schedule.waiting, *schedule.running) if s.boosted}
        self.waiting_since = {sequence: sequence.waiting_since for sequence in self.waiting}

    def check_order(self, simulator: "Simulator") -> None:
        schedule = simulator.schedule
        number, patience = schedule.step, schedule.limits.starvation_steps
        started = [s for s in self.waiting if s.status is Status.RUNNING]
        left = [
            s for s in self.waiting if s.status is Status.WAITING and s.stalled_on is None
        ]  # who waits for pixels is passed
        overtaking = [s for s in started if any(other.rank < s.rank for other in left)]
        assert len(overtaking) <= 1, "several sequences overtake one that waits"
        longest = min((since for s, since in self.waiting_since.items() if s.stalled_on is None), default=0)
        for sequence in overtaking:
            assert sequence.boosted and sequence.waiting_since == longest, "only who has waited longest overtakes"
        newly = [s for s in (*schedule.waiting, *schedule.running) if s.boosted and s.id not in self.boosted]
        if newly:
            simulator.quiet_steps = 0
        for sequence in newly:
            assert number - sequence.waiting_since >= patience, "boosted before its time"
        for victim in self.running:
            if victim.status is Status.WAITING:
                assert victim.waiting_since == number
                veteran = number - victim.running_since >= patience
                grown = len(victim.output) > simulator.watched[victim.id].output_at_start
                above = any(s.rank < victim.rank for s in (*schedule.running, *left))
                assert above or (veteran and grown) or victim.stalled_on is not None, "preempted before it had its turn"
