"""How often each token has come, for penalties: counted on the device, by slot, so that no step waits for the host to count.

A token is counted when the next one is sampled, not when it is sampled itself: a draft that is rejected was never part of the
answer. Which tokens are new, the host says; the one sampled last it may not know yet, and that is taken on the device.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sightline.ops.transfer import send
from sightline.worker.step_input import SamplingRow, SlotReset


class PenaltyCounts:
    def __init__(self, slots: int, vocab: int, device: torch.device) -> None:
        self._vocab, self._device = vocab, device
        self._answer = torch.zeros(slots, vocab, dtype=torch.int32, device=device)
        self._prompt = torch.zeros(slots, vocab, dtype=torch.bool, device=device)

    def update(self, rows: Sequence[SamplingRow], resets: Sequence[SlotReset], sampled: Tensor) -> None:
        """Takes in what is new before a step samples. `sampled` [slots] has the token that each slot sampled last."""
        if resets:
            slots = send(np.array([reset.slot for reset in resets]), self._device)
            self._answer.index_fill_(0, slots, 0)
            self._prompt.index_fill_(0, slots, False)
            cells = flat_cells([reset.prompt_ids for reset in resets], [reset.slot for reset in resets], self._vocab)
            self._prompt.view(-1).index_fill_(0, send(cells, self._device), True)
        new = [(row.slot, token) for row in rows for token in row.count_ids]
        if new:
            slots, ids = send(np.array(new, np.int64).T, self._device)
            ids = torch.where(ids < 0, sampled[slots], ids)
            ones = torch.ones(len(new), dtype=torch.int32, device=self._device)
            self._answer.view(-1).scatter_add_(0, slots * self._vocab + ids, ones)

    def of(self, rows: Sequence[SamplingRow]) -> tuple[Tensor, Tensor]:
        """Per row how often each token is in the answer, [n, vocab] int32, and whether it is in the prompt, [n, vocab]."""
        slots = send(np.array([row.slot for row in rows]), self._device)
        counts = self._answer.index_select(0, slots)
        if any(row.draft_ids for row in rows):
            cells = send(flat_cells([row.draft_ids for row in rows], range(len(rows)), self._vocab), self._device)
            counts.view(-1).scatter_add_(0, cells, torch.ones(cells.shape, dtype=torch.int32, device=self._device))
        return counts, self._prompt.index_select(0, slots)


def flat_cells(ids: Sequence[Sequence[int] | NDArray[Any]], indices: Sequence[int], vocab: int) -> NDArray[np.int64]:
    """Where (place, id) stands in a flattened [rows, vocab] matrix, for all ids of all places."""
    parts = [np.asarray(some, np.int64) for some in ids]
    flat = np.concatenate(parts)
    # An id outside would land in a neighbour's row. As unsigned numbers, negative ones are large.
    assert flat.view(np.uint64).max(initial=0) < vocab, f"a token id is not within 0 … {vocab - 1}"
    flat += np.repeat(np.asarray(indices, np.int64) * vocab, [len(part) for part in parts])
    return flat
