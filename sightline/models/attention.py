"""The mixer of most layers: attention over pages of keys and values."""

import torch
from torch import nn

from sightline.models.inputs import ForwardBatch, LayerCache, LogitsIndices, single_queries
from sightline.models.layers import RMSNorm
from sightline.models.linear import Linear
from sightline.models.rotary_tables import RotaryTables
from sightline.ops.activations import sigmoid_mul
from sightline.ops.attention import paged_attention
from sightline.ops.new_tokens import attend_new_tokens
from sightline.ops.paged_cache import PagedCache
from sightline.ops.qkv import HeadNorms, rotate_and_store
from sightline.ops.rotary import RotaryTable, TextRotation
from sightline.spec import AttentionSpec


class Attention(nn.Module):
    graph_safe = True  # where its ops are

    def __init__(self, spec: AttentionSpec, size: int, norm_eps: float) -> None:
        super().__init__()
        self.spec = spec
        heads = spec.num_heads + 2 * spec.num_kv_heads
        self.qkv = Linear(size, heads * spec.head_dim, spec.qkv_bias, "column")
        self.q_norm = RMSNorm(spec.head_dim, norm_eps) if spec.qk_norm else None
        self.k_norm = RMSNorm(spec.head_dim, norm_eps) if spec.qk_norm else None
        self.gate = Linear(size, spec.num_heads * spec.head_dim, False, "column") if spec.output_gate else None
        self.out = Linear(spec.num_heads * spec.head_dim, size, False, "row")
        self.rotary: RotaryTable
        self.axes: torch.Tensor

    def prepare(self, tables: RotaryTables) -> None:
        self.rotary, self.axes = tables.of(self.spec.rope)

    def forward(
        self, hidden: torch.Tensor, batch: ForwardBatch, cache: LayerCache, logits_indices: LogitsIndices | None
    ) -> torch.Tensor:
        """What `out` takes, of all tokens or of those alone; all have their keys and values stored."""
        attended = self._attend(hidden, batch, cache, logits_indices)
        if self.gate is None:
            return attended
        gates = batch.adapter_gates
        if logits_indices is not None:
            hidden, gates = hidden[logits_indices.index], None if gates is None else gates[logits_indices.index]
        return sigmoid_mul(attended, self.gate(hidden, gates))

    def _attend(
        self, hidden: torch.Tensor, batch: ForwardBatch, cache: LayerCache, logits_indices: LogitsIndices | None
    ) -> torch.Tensor:
        assert isinstance(cache, PagedCache)
        qkv = self.qkv(hidden, batch.adapter_gates).unflatten(1, (-1, self.spec.head_dim))
        rotation = TextRotation(batch.positions, self.rotary, self.axes, self.spec.rope.pairing)
        norms = None
        if self.q_norm is not None and self.k_norm is not None:
            norms = HeadNorms(self.q_norm.weight, self.k_norm.weight, self.q_norm.eps)
        if logits_indices is not None and not batch.sequences.one_query_each:
            q = rotate_and_store(qkv, norms, rotation, cache, batch.slots)
            return _attend_for_logits(logits_indices, q, batch.sequences.page_table, cache).flatten(1)
        attended = attend_new_tokens(qkv, norms, rotation, cache, batch.slots, batch.sequences, batch.split_kv).flatten(1)
        return attended if logits_indices is None else attended[logits_indices.index]


def _attend_for_logits(
    logits_indices: LogitsIndices, q: torch.Tensor, page_table: torch.Tensor, cache: PagedCache
) -> torch.Tensor:
    """q [tokens, heads, head_dim]. Returns [logits, heads, head_dim]."""
    if not len(logits_indices.index):
        return q[:0]
    return paged_attention(q[logits_indices.index], cache, single_queries(logits_indices, page_table))
