"""The mixer of three layers out of four: a gated delta net, with a state per sequence in place of keys and values."""

import torch
from torch import nn

from sightline.models.families.qwen3_5.spec import DeltaNetSpec
from sightline.models.inputs import ForwardBatch, LayerCache, LogitsIndices, StateCache
from sightline.models.linear import Linear
from sightline.models.rotary_tables import RotaryTables
from sightline.ops.causal_conv import causal_conv
from sightline.ops.delta_rule import gated_delta_rule
from sightline.ops.norms import gated_rms_norm


class DeltaNet(nn.Module):
    def __init__(self, spec: DeltaNetSpec, size: int) -> None:
        super().__init__()
        self.spec = spec
        self.qkv_gate = Linear(size, spec.channels + spec.values, False, "column")
        self.rates = Linear(size, 2 * spec.value_heads, False, "column")  # b, then a
        self.rates.stays_plain = True
        self.conv = nn.Parameter(torch.empty(spec.channels, spec.conv_width))
        self.a_log = nn.Parameter(torch.empty(spec.value_heads))
        self.dt_bias = nn.Parameter(torch.empty(spec.value_heads))
        self.norm = nn.Parameter(torch.empty(spec.value_dim))
        self.out = Linear(spec.values, size, False, "row")

    @property
    def graph_safe(self) -> bool:
        """Where kernels take it: their definitions go from sequence to sequence on the host."""
        sizes = (self.spec.key_dim, self.spec.value_dim)
        powers_of_two = all(size >= 16 and not size & (size - 1) for size in sizes)
        return powers_of_two and all(op.kernels for op in (causal_conv, gated_delta_rule, gated_rms_norm))

    def prepare(self, tables: RotaryTables) -> None:
        """Everything comes from the checkpoint."""

    def forward(
        self, hidden: torch.Tensor, batch: ForwardBatch, cache: LayerCache, logits_indices: LogitsIndices | None
    ) -> torch.Tensor:
        assert isinstance(cache, StateCache) and batch.states is not None
        states, inputs = cache.tensors
        qkv, gate = self.qkv_gate(hidden).split([self.spec.channels, self.spec.values], 1)
        b, a = self.rates(hidden).chunk(2, 1)
        qkv = causal_conv(qkv, self.conv, inputs, batch.sequences, batch.states)
        mixed = gated_delta_rule(qkv, b, a, self.a_log, self.dt_bias, states, batch.sequences, batch.states)
        if logits_indices is not None:
            mixed, gate = mixed[logits_indices.index], gate[logits_indices.index]
        return gated_rms_norm(mixed, gate, self.norm, self.spec.norm_eps, self.spec.output_gate)
