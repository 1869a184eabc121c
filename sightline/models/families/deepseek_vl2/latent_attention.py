"""The mixer of small and base: attention that keeps one compressed vector per token."""

import torch
from torch import nn

from sightline.models.families.deepseek_vl2.spec import LatentAttentionSpec
from sightline.models.inputs import ForwardBatch, LayerCache, LogitsIndices, single_queries
from sightline.models.layers import RMSNorm
from sightline.models.linear import Linear
from sightline.models.rotary_tables import RotaryTables
from sightline.ops.latent_attention import latent_attention, store_latents
from sightline.ops.latent_cache import LatentCache
from sightline.ops.rotary import RotaryAngles, RotaryTable, rotary


class LatentAttention(nn.Module):
    graph_safe = False  # prompts go from sequence to sequence on the host

    def __init__(self, spec: LatentAttentionSpec, size: int) -> None:
        super().__init__()
        self.spec = spec
        self.q = Linear(size, spec.num_heads * spec.query_dim, False, "column")
        self.latent = Linear(size, spec.rank + spec.rope.rotary_dim, False)  # of all heads: every rank makes it
        self.latent_norm = RMSNorm(spec.rank, spec.norm_eps)
        self.keys = nn.Parameter(torch.empty(spec.num_heads, spec.nope_dim, spec.rank))
        self.values = nn.Parameter(torch.empty(spec.num_heads, spec.value_dim, spec.rank))
        self.out = Linear(spec.num_heads * spec.value_dim, size, False, "row")
        self.rotary: RotaryTable
        self.axes: torch.Tensor

    def prepare(self, tables: RotaryTables) -> None:
        self.rotary, self.axes = tables.of(self.spec.rope)

    def forward(
        self, hidden: torch.Tensor, batch: ForwardBatch, cache: LayerCache, logits_indices: LogitsIndices | None
    ) -> torch.Tensor:
        assert isinstance(cache, LatentCache)
        q: torch.Tensor = self.q(hidden).unflatten(1, (self.spec.num_heads, -1))
        latents, rotated = self.latent(hidden).split([self.spec.rank, self.spec.rope.rotary_dim], 1)
        angles = RotaryAngles(self.rotary.cos, self.rotary.sin, batch.positions, self.axes)
        rotary(q[..., self.spec.nope_dim :], rotated[:, None], angles, self.spec.rope.pairing)
        store_latents(self.latent_norm(latents.contiguous()), rotated, cache, batch.slots)
        sequences = batch.sequences
        if logits_indices is not None:
            q = q[logits_indices.index]
            if not len(q):
                return q.new_empty(0, self.spec.num_heads * self.spec.value_dim)
            sequences = single_queries(logits_indices, sequences.page_table)
        attended: torch.Tensor = latent_attention(q, self.keys, self.values, cache, sequences).flatten(1)
        return attended
