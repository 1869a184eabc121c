"""Snapshots of states, for models with layers that keep a state per sequence.

A state cannot be cut back to an earlier token as keys and values can. So a sequence goes on from a known prefix only where a
node of the prefix tree has a snapshot, and a chunk ends wherever one is wanted:

    prompt    |────── known pages ──────|junction ── image ──────────────| how the answer begins | answer
    snapshots         every `interval` │          │                  │ at the end of the turn        │ one, where it has got to
                                       │          └ at the end of an image: the same picture, another question
                                       └ at the end of what other requests have in common with it

Each is at the last multiple of `grid` up to there. Never at the prompt's last token or behind it: a request for the same prompt
computes at least one token, and a state that has taken a token must not take it again. Nor among the tokens that a template
puts before the answer: the next turn of a conversation writes them differently.

An answer comes back as a part of a prompt only if it called a tool, or if thoughts are kept: then one snapshot goes along with
it. Its tokens may not be known yet when the device has taken them, so it waits for its node; the one before it then goes.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from sightline.cache.pages import Node
from sightline.schedule.state import Schedule, Sequence, Step

GRID_TOKENS = 64  # the chunk of recurrent kernels: a prefill that is cut there computes the same numbers
INTERVAL_TOKENS = 4096
ANSWER_START_TOKENS = 16  # at most, that templates put before an answer
_LAST_IMAGES = 4  # of a prompt: before them it is to do with a snapshot every `interval`


@dataclass
class StateSlotPool:
    """Which slots of the workers' states hold snapshots, and which are free."""

    free: list[int]
    page_size: int
    state_bytes: int  # of one slot
    grid: int = GRID_TOKENS  # or the next multiple of it that is whole pages
    interval: int = INTERVAL_TOKENS
    answer_start: int = ANSWER_START_TOKENS
    taken: int = 0  # snapshots, that were kept
    tokens_lost: int = 0  # whose pages were known, and which were computed again because no state was there

    def __post_init__(self) -> None:
        self.grid = math.lcm(self.grid, self.page_size)


def plan_snapshots(states: StateSlotPool, sequence: Sequence, known: int) -> None:
    """Says where a sequence that starts now is to leave snapshots; `known` tokens have their pages in the tree."""
    grid, prompt = states.grid, sequence.prompt_tokens
    states.tokens_lost += max(0, min(known, len(sequence) - 1) // grid * grid - sequence.computed)
    last = max(1, prompt - states.answer_start) // grid * grid
    images = sorted({end // grid * grid for end in sequence.item_ends})
    wanted = {last, known // grid * grid, *images[-_LAST_IMAGES:]}
    step = max(1, states.interval // grid) * grid
    for end in range(step, last, step):
        wanted.add(max((image for image in images if end - step < image <= end), default=end))
    sequence.snapshot_at = sorted(at for at in wanted if sequence.computed < at <= last)


def until_snapshot(sequence: Sequence, start: int, count: int) -> int:
    """How many of `count` tokens come before the next snapshot that the sequence is to leave."""
    return next((min(count, at - start) for at in sequence.snapshot_at if at > start), count)


def take_slots(schedule: Schedule, step: Step) -> dict[int, int]:
    """Slots for the snapshots that a step is to leave, by sequence; where all are in use, of the one unused for longest."""
    taken: dict[int, int] = {}
    if schedule.states is None:
        return taken
    for chunk in step.chunks:
        end, sequence = chunk.start + chunk.count, chunk.sequence
        if end in sequence.snapshot_at or _is_due_in_answer(schedule.states, sequence, end):
            if not schedule.states.free:
                schedule.pages.evict_state()
            if schedule.states.free:
                taken[sequence.id] = schedule.states.free.pop()
    return taken


def _is_due_in_answer(states: StateSlotPool, sequence: Sequence, end: int) -> bool:
    return sequence.answer_returns and end > sequence.prompt_tokens and not end % states.grid and sequence.awaits_node is None


def give_back(schedule: Schedule, taken: Mapping[int, int]) -> None:
    """The step was not launched."""
    if schedule.states is not None:
        schedule.states.free += taken.values()


def keep(schedule: Schedule, step: Step, taken: Mapping[int, int]) -> None:
    """The step was launched, and what it computed counts: its snapshots belong to the ends of the pages that it filled."""
    if schedule.states is None:
        return
    for chunk in step.chunks:
        sequence, end = chunk.sequence, chunk.start + chunk.count
        if sequence.id not in taken:
            continue
        if end > sequence.prompt_tokens:
            sequence.awaits_node = (end, taken[sequence.id])
            keep_of_answer(schedule, sequence)
        else:
            _attach(schedule, schedule.states, sequence, end, taken[sequence.id])


def keep_of_answer(schedule: Schedule, sequence: Sequence) -> None:
    """Its tokens may be known by now, and have a node; then the snapshot before it is not needed any more."""
    states = schedule.states
    if states is None or sequence.awaits_node is None:
        return
    end, slot = sequence.awaits_node
    if len(sequence.nodes) * states.page_size < end:
        return
    sequence.awaits_node = None
    node = _attach(schedule, states, sequence, end, slot)
    if sequence.kept_in_answer is not None:
        schedule.pages.drop_state(sequence.kept_in_answer)
    sequence.kept_in_answer = node


def _attach(schedule: Schedule, states: StateSlotPool, sequence: Sequence, end: int, slot: int) -> Node | None:
    """The node, if the snapshot is its state now."""
    node = sequence.nodes[end // states.page_size - 1]
    if not schedule.pages.attach_state(node, slot, states.state_bytes):  # another sequence was faster
        states.free.append(slot)
        return None
    states.taken += 1
    return node


def forget(schedule: Schedule, sequence: Sequence) -> None:
    """The sequence stops. A snapshot of tokens that never got a node, such as what was computed behind its end, is nobody's."""
    if schedule.states is not None and sequence.awaits_node is not None:
        schedule.states.free.append(sequence.awaits_node[1])
    sequence.awaits_node = sequence.kept_in_answer = None
    sequence.snapshot_at = []


def slot_of(node: Node) -> int:
    assert node.state is not None and isinstance(node.state.handle, int)
    return node.state.handle
