"""Everything on one device: weights, pages, the embedding arena, graphs, the sampler. It computes what the host has decided.

A worker knows slots and indices, never a sequence, a cache or a request (worker/step_input.py has all that it is told).
Steps are launched without waiting for the device and read in the order they were launched; see also worker/encodes.py.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from sightline.encoder.gpu_decode import GpuDecoder
from sightline.models.inputs import LayerCache
from sightline.models.model import VisionLanguageModel
from sightline.ops.pages import copy_pages
from sightline.ops.transfer import send
from sightline.parallel.group import Group
from sightline.worker.arena import EmbeddingArena
from sightline.worker.batch import known_tokens, to_device
from sightline.worker.caches import copy_states, paged_tensors
from sightline.worker.device_timer import DeviceTimer
from sightline.worker.encodes import Encodes
from sightline.worker.out_of_memory import recover
from sightline.worker.penalties import PenaltyCounts
from sightline.worker.readout import Readout
from sightline.worker.sampler import sample
from sightline.worker.step_graphs import StepGraphs
from sightline.worker.step_input import GrammarMasks, StepInput, StepOutput, WorkerFailure
from sightline.worker.workspaces import Workspaces


@dataclass(frozen=True)
class _Launched:
    number: int
    readout: Readout  # of what was sampled, if anything was
    timer: DeviceTimer
    towers: list[DeviceTimer]  # of items that were encoded before it, in line with it


class Worker:
    def __init__(
        self,
        model: VisionLanguageModel,
        caches: list[LayerCache],
        arena: EmbeddingArena,
        counts: PenaltyCounts,
        sampled: torch.Tensor,
        encodes: Encodes,
        step_graphs: StepGraphs | None = None,
        workspaces: Workspaces | None = None,
        group: Group | None = None,
    ) -> None:
        """`sampled` [slots] int64 is where the token that each slot sampled last is kept. `group`: the ranks that hold the
        model together; the first of them samples."""
        self.model, self.caches, self.arena = model, caches, arena
        self.device, self.workspaces = arena.rows.device, workspaces or Workspaces()
        self.encodes, self.step_graphs = encodes, step_graphs
        self._counts, self._sampled, self._group = counts, sampled, group
        self._has_states = model.spec.text.state_bytes(1) > 0
        self._launched: deque[_Launched] = deque()  # not read yet, in order
        self._unsampled: tuple[StepInput, torch.Tensor, DeviceTimer] | None = None  # a step that waits for masks: its logits

    # ---- Steps

    def submit(self, step: StepInput) -> WorkerFailure | None:
        """Launches a step; does not wait for the device. Tokens that the host does not know yet are taken from their slots."""
        assert self._unsampled is None, "the step before still waits for the masks of its grammars"
        timer = DeviceTimer(self.device)
        try:
            timer.start()
            logits = self._forward(step)
            if step.masked:
                self._unsampled = step, logits, timer
            else:
                self._sample(step, logits, timer, None)
        except Exception as error:  # whatever happens in a step costs its requests, not the worker
            return WorkerFailure.of(recover(error))
        return None

    def submit_masks(self, masks: GrammarMasks) -> WorkerFailure | None:
        """The masks that the step submitted last waits for."""
        assert self._unsampled is not None and self._unsampled[0].number == masks.number, "no step waits for these masks"
        step, logits, timer = self._unsampled
        self._unsampled = None
        try:
            self._sample(step, logits, timer, masks)
        except Exception as error:
            return WorkerFailure.of(recover(error))
        return None

    def _forward(self, step: StepInput) -> torch.Tensor:
        """Logits [rows, vocab]."""
        self._copy_states(step.restore_states)
        self._copy_pages(step.copy_pages)
        logits = self.step_graphs.run(step.batch) if self.step_graphs is not None else None
        if logits is None:
            kept = self.workspaces.gathered, self._has_states, self.model.text.adapter_gates
            batch = to_device(step.batch, self.device, self.arena.rows, *kept)
            batch = replace(batch, token_ids=known_tokens(batch.token_ids, self._sampled))
            logits = self.model(batch, self.caches)
        self._copy_states(step.save_states)
        return logits

    @torch.inference_mode()
    def _copy_states(self, slots: NDArray[np.int64] | None) -> None:
        if slots is not None:
            copy_states(self.caches, *send(np.ascontiguousarray(slots.T), self.device))

    @torch.inference_mode()
    def _copy_pages(self, pages: NDArray[np.int64] | None) -> None:
        if pages is not None:
            sources, targets = send(np.ascontiguousarray(pages.T), self.device)
            for tensors in paged_tensors(self.caches):
                copy_pages(tensors, sources, targets)

    @torch.inference_mode()
    def _sample(self, step: StepInput, logits: torch.Tensor, timer: DeviceTimer, masks: GrammarMasks | None) -> None:
        sampled = None
        if step.rows:
            if self._group is None or self._group.rank == 0:
                self._counts.update(step.rows, step.resets, self._sampled)
                sampled = sample(logits, step.rows, self._counts, step.masked, None if masks is None else masks.words)
            ids = sampled.token_ids if sampled is not None else self._sampled.new_empty(len(step.rows))
            if self._group is not None:
                self._group.broadcast_(ids)
            slots = send(np.array([row.slot for row in step.rows]), self.device)
            self._sampled.index_copy_(0, slots, ids)
        timer.stop()
        self._launched.append(_Launched(step.number, Readout(sampled, self.device), timer, self.encodes.take_timers()))

    @property
    def busy(self) -> bool:
        """Whether a launched step has not been collected."""
        return bool(self._launched)

    @property
    def waits_for_masks(self) -> bool:
        return self._unsampled is not None

    @property
    def ready(self) -> bool:
        """Whether `collect` would not wait."""
        return self._launched[0].readout.ready

    def collect(self) -> StepOutput:
        """What the oldest launched step brought; waits for the device."""
        launched = self._launched.popleft()
        try:
            sampled = launched.readout.read()
            return StepOutput(
                launched.number,
                *sampled,
                seconds=launched.timer.seconds,
                tower_seconds=sum(timer.seconds for timer in launched.towers),
            )
        except Exception as error:
            return StepOutput(launched.number, failure=WorkerFailure.of(recover(error)))

    # ---- What else the host asks

    def capture_graphs(self, advance: Callable[[], None]) -> None:
        """So that no request waits for it. `advance` is called after each."""
        self.encodes.capture_graphs(advance)
        if self.step_graphs is not None:
            self.step_graphs.capture_all(advance)

    @property
    def captured_graphs(self) -> int:
        return self.encodes.captured_graphs + (0 if self.step_graphs is None else len(self.step_graphs))

    @property
    def gpu_decoder(self) -> GpuDecoder | None:
        return self.encodes.gpu_decoder

    @property
    def gpu_bytes(self) -> int:
        """What torch has taken from the GPU, in use or kept for later; 0 on a CPU."""
        return torch.cuda.memory_reserved(self.device) if self.device.type == "cuda" else 0

    def give_memory_back(self) -> None:
        """What torch keeps for later steps goes back to the GPU; the next ones take it again."""
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def close(self) -> None:
        self.encodes.close()
        if self._group is not None:
            self._group.leave()
