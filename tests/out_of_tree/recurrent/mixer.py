"""The mixer of the recurrent family: a memory per head that fades, and a hidden vector that is handed to the next token.

x'_t = x_t + shift * x_(t-1);  S_t = f_t S_(t-1) + k_t v_t^T, f = sigmoid(w x'_t);  o_t = q_t S_t
"""

import torch
from torch import nn

from sightline.models.inputs import ForwardBatch, LayerCache, LogitsIndices, StateCache
from sightline.models.linear import Linear
from sightline.models.rotary_tables import RotaryTables

from . import MemorySpec


class Memory(nn.Module):
    graph_safe = False  # a loop over sequences and tokens on the host

    def __init__(self, spec: MemorySpec) -> None:
        super().__init__()
        self.spec, inner = spec, spec.heads * spec.head_dim
        self.shift = nn.Parameter(torch.empty(spec.hidden_size))
        self.qkv = Linear(spec.hidden_size, 3 * inner, False, "column")
        self.fade = Linear(spec.hidden_size, spec.heads, False, "column")
        self.out = Linear(inner, spec.hidden_size, False, "row")

    def prepare(self, tables: RotaryTables) -> None:
        pass

    def forward(
        self, hidden: torch.Tensor, batch: ForwardBatch, cache: LayerCache, logits_indices: LogitsIndices | None
    ) -> torch.Tensor:
        assert isinstance(cache, StateCache) and batch.states is not None
        memories, lasts = cache.tensors
        found, start = [], 0
        for number, length in enumerate(batch.sequences.query_lengths_host):
            slot, x = int(batch.states.slots[number]), hidden[start : start + length]
            memory, last = memories[slot].clone(), lasts[slot].clone()
            if batch.states.fresh[number]:
                memory, last = torch.zeros_like(memory), torch.zeros_like(last)
            shifted = x + self.shift * torch.cat((last[None], x[:-1]))
            q, k, v = self.qkv(shifted).unflatten(1, (3, self.spec.heads, -1)).float().unbind(1)
            fades = self.fade(shifted).float().sigmoid()
            for token in range(length):
                memory = fades[token, :, None, None] * memory + k[token, :, :, None] * v[token, :, None, :]
                found.append((q[token, :, None] @ memory).flatten().to(hidden.dtype))
            memories[slot], lasts[slot] = memory, x[-1]
            start += length
        mixed = torch.stack(found)
        return mixed if logits_indices is None else mixed[logits_indices.index]
