"""The language model: one decoder for every family; TextSpec says what differs."""

import torch
import torch.nn.functional as F
from torch import nn

from sightline.models.inputs import ForwardBatch, LayerCache
from sightline.models.layers import GatedMLP, RMSNorm
from sightline.ops.attention import paged_attention
from sightline.ops.qkv import rotate_and_store
from sightline.ops.rotary import RotaryTable, make_rotary_table, mrope_axes
from sightline.ops.rows import add_rows, place_rows
from sightline.spec import TextSpec


class Attention(nn.Module):
    def __init__(self, spec: TextSpec) -> None:
        super().__init__()
        self.spec = spec
        heads = spec.num_heads + 2 * spec.num_kv_heads
        self.qkv = nn.Linear(spec.hidden_size, heads * spec.head_dim, bias=spec.qkv_bias)
        self.q_norm = RMSNorm(spec.head_dim, spec.norm_eps) if spec.qk_norm else None
        self.k_norm = RMSNorm(spec.head_dim, spec.norm_eps) if spec.qk_norm else None
        self.out = nn.Linear(spec.num_heads * spec.head_dim, spec.hidden_size, bias=False)

    def forward(
        self, hidden: torch.Tensor, batch: ForwardBatch, cache: LayerCache, table: RotaryTable, axes: torch.Tensor
    ) -> torch.Tensor:
        q = rotate_and_store(
            self.qkv(hidden).unflatten(1, (-1, self.spec.head_dim)),
            None if self.q_norm is None else self.q_norm.weight,
            None if self.k_norm is None else self.k_norm.weight,
            self.spec.norm_eps,
            batch.positions,
            table,
            axes,
            self.spec.rope.pairing,
            cache.keys,
            cache.values,
            batch.slots,
        )
        attended = paged_attention(
            q,
            cache.keys,
            cache.values,
            batch.page_table,
            batch.query_starts,
            batch.context_lengths,
            batch.query_lengths_host,
            batch.context_lengths_host,
        )
        out: torch.Tensor = self.out(attended.flatten(1))
        return out


class DecoderLayer(nn.Module):
    def __init__(self, spec: TextSpec) -> None:
        super().__init__()
        self.input_norm = RMSNorm(spec.hidden_size, spec.norm_eps)
        self.attention = Attention(spec)
        self.attention_out_norm = RMSNorm(spec.hidden_size, spec.norm_eps) if spec.sandwich_norm else None
        self.mlp_norm = RMSNorm(spec.hidden_size, spec.norm_eps)
        self.mlp = GatedMLP(spec.hidden_size, spec.intermediate_size, bias=False)
        self.mlp_out_norm = RMSNorm(spec.hidden_size, spec.norm_eps) if spec.sandwich_norm else None

    def forward(
        self,
        hidden: torch.Tensor,
        pending: torch.Tensor | None,
        batch: ForwardBatch,
        cache: LayerCache,
        table: RotaryTable,
        axes: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The layer's input is hidden + pending and so is its output: each add is left to the norm that follows it."""
        if pending is None:
            normed = self.input_norm(hidden)
        else:
            normed, hidden = self.input_norm.after_add(pending, hidden)
        attended = self.attention(normed, batch, cache, table, axes)
        if self.attention_out_norm is not None:
            attended = self.attention_out_norm(attended)
        normed, hidden = self.mlp_norm.after_add(attended, hidden)
        pending = self.mlp(normed)
        if self.mlp_out_norm is not None:
            pending = self.mlp_out_norm(pending)
        return hidden, pending


class Decoder(nn.Module):
    def __init__(self, spec: TextSpec) -> None:
        super().__init__()
        self.spec = spec
        # Given a weight it draws none: normal numbers on the meta device would import torch's compiler, which takes a second.
        self.embed_tokens = nn.Embedding(
            spec.vocab_size, spec.hidden_size, _weight=torch.empty(spec.vocab_size, spec.hidden_size)
        )
        self.layers = nn.ModuleList(DecoderLayer(spec) for _ in range(spec.num_layers))
        self.norm = RMSNorm(spec.hidden_size, spec.norm_eps)
        self.lm_head = None if spec.tie_word_embeddings else nn.Linear(spec.hidden_size, spec.vocab_size, bias=False)
        self.rotary: RotaryTable
        self.axes: torch.Tensor

    def prepare(self, max_position: int) -> None:
        """Makes what does not come from the checkpoint; called once after the weights are loaded."""
        device, rope = self.embed_tokens.weight.device, self.spec.rope
        self.rotary = make_rotary_table(max_position, rope.rotary_dim, rope.theta, device)
        self.axes = mrope_axes(rope.sections, rope.layout, device)

    def forward(self, batch: ForwardBatch, caches: list[LayerCache]) -> torch.Tensor:
        """Logits of the wanted tokens, [wanted, vocab], in the model's dtype."""
        size = self.spec.hidden_size
        hidden: torch.Tensor = self.embed_tokens(batch.token_ids)
        taps = 0
        if batch.vision_rows is not None and batch.row_index is not None:
            hidden = place_rows(hidden, batch.vision_rows[:, :size], batch.row_index)
            taps = batch.vision_rows.shape[1] // size - 1
        pending: torch.Tensor | None = None
        for index, (layer, cache) in enumerate(zip(self.layers, caches, strict=True)):
            hidden, pending = layer(hidden, pending, batch, cache, self.rotary, self.axes)
            if index < taps and batch.vision_rows is not None and batch.row_index is not None:
                tap = batch.vision_rows[:, (index + 1) * size : (index + 2) * size]
                hidden, pending = add_rows(hidden + pending, tap, batch.row_index), None
        if pending is not None:
            hidden = hidden + pending
        wanted = self.norm(hidden[batch.logit_index])
        head = self.embed_tokens.weight if self.lm_head is None else self.lm_head.weight
        return F.linear(wanted, head)
