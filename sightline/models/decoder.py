"""The language model: one decoder for every family; TextSpec says what differs."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from sightline.models.inputs import ForwardBatch, LayerCache, WantedTokens
from sightline.models.layers import GatedMLP, RMSNorm, add_product, apply_linear
from sightline.ops.attention import paged_attention
from sightline.ops.linear import FEW_ROWS, linear
from sightline.ops.new_tokens import attend_new_tokens
from sightline.ops.qkv import HeadNorms, rotate_and_store
from sightline.ops.rotary import RotaryTable, TextRotation, make_rotary_table, mrope_axes
from sightline.ops.rows import embed_rows
from sightline.ops.sequences import PagedSequences
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
        self,
        hidden: torch.Tensor,
        batch: ForwardBatch,
        cache: LayerCache,
        rotation: TextRotation,
        only: WantedTokens | None,
    ) -> torch.Tensor:
        """What `out` takes, of all tokens or of those alone; all have their keys and values stored."""
        qkv = apply_linear(self.qkv, hidden).unflatten(1, (-1, self.spec.head_dim))
        norms = None
        if self.q_norm is not None and self.k_norm is not None:
            norms = HeadNorms(self.q_norm.weight, self.k_norm.weight, self.spec.norm_eps)
        if only is not None and not batch.sequences.one_query_each:
            q = rotate_and_store(qkv, norms, rotation, cache.keys, cache.values, batch.slots)
            return _attend_only(only, q, batch.sequences.page_table, cache).flatten(1)
        attended = attend_new_tokens(
            qkv, norms, rotation, cache.keys, cache.values, batch.slots, batch.sequences, batch.key_items
        ).flatten(1)
        return attended if only is None else attended[only.index]


def _attend_only(wanted: WantedTokens, q: torch.Tensor, page_table: torch.Tensor, cache: LayerCache) -> torch.Tensor:
    """q [tokens, heads, head_dim]. Returns [wanted, heads, head_dim]."""
    if not len(wanted.index):
        return q[:0]
    single = PagedSequences(
        page_table[wanted.sequence],
        wanted.query_starts,
        wanted.context_lengths,
        (1,) * len(wanted.index),
        wanted.context_lengths_host,
    )
    return paged_attention(q[wanted.index], cache.keys, cache.values, single)


def norm_of_sum(
    norm: RMSNorm, hidden: torch.Tensor, pending: torch.Tensor, tap: torch.Tensor | None, row_index: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """(norm(total), total), where total is hidden + pending, and + tap[row_index] for vision tokens. tap [rows, size]"""
    if tap is None or row_index is None:
        return norm.after_add(pending, hidden)
    return norm.after_add_of_rows(pending, hidden, tap, row_index)


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
        tap: torch.Tensor | None,
        batch: ForwardBatch,
        cache: LayerCache,
        rotation: TextRotation,
        tap_follows: bool,
        only: WantedTokens | None,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Its input is hidden + pending (+ tap), its output hidden + pending: adds are left to the norm that follows them.

        With more than a few rows the products add to the stream in place instead, and nothing is pending: one pass over memory
        less each. `only`: those whose output anybody reads; all have their keys and values stored.
        """
        if pending is None:
            normed = self.input_norm(hidden)
        else:
            normed, hidden = norm_of_sum(self.input_norm, hidden, pending, tap, batch.row_index)
        attended = self.attention(normed, batch, cache, rotation, only)
        if only is not None:
            hidden = hidden[only.index]
            if not len(hidden):
                return hidden, None
        if self.attention_out_norm is not None and self.mlp_out_norm is not None:
            projected = self.attention_out_norm(apply_linear(self.attention.out, attended))
            normed, hidden = self.mlp_norm.after_add(projected, hidden)
            return hidden, self.mlp_out_norm(self.mlp(normed))
        if hidden.shape[0] <= FEW_ROWS:
            normed, hidden = self.mlp_norm.after_add(apply_linear(self.attention.out, attended), hidden)
            return hidden, self.mlp(normed)
        hidden = add_product(hidden, attended, self.attention.out)
        normed = self.mlp_norm(hidden)
        if tap_follows:
            return hidden, self.mlp(normed)
        return add_product(hidden, self.mlp.inner(normed), self.mlp.last), None


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

    @contextmanager
    def only_first(self, count: int) -> Iterator[None]:
        """Inside, the decoder has its first layers alone: enough to see what a step takes, for the others do the same."""
        every = self.layers
        self.layers = every[:count]
        try:
            yield
        finally:
            self.layers = every

    def forward(self, batch: ForwardBatch, caches: list[LayerCache]) -> torch.Tensor:
        """Logits of the wanted tokens, [wanted, vocab], in the model's dtype."""
        hidden = embed_rows(batch.token_ids, self.embed_tokens.weight, batch.vision_rows, batch.row_index)
        taps = self._taps(batch)
        rotation = TextRotation(batch.positions, self.rotary, self.axes, self.spec.rope.pairing)
        pending, tap = None, None
        for index, (layer, cache) in enumerate(zip(self.layers, caches, strict=True)):
            tap_follows, is_last = index < len(taps), index == len(self.layers) - 1
            only = batch.wanted if is_last else None
            hidden, pending = layer(hidden, pending, tap, batch, cache, rotation, tap_follows, only)
            tap = taps[index] if tap_follows else None
        rows = None if tap is None or batch.row_index is None else batch.row_index[batch.wanted.index]
        if pending is None:
            normed = self.norm(hidden)
        else:
            normed, _ = norm_of_sum(self.norm, hidden, pending, tap, rows)
        head = self.embed_tokens.weight if self.lm_head is None else self.lm_head.weight
        return linear(normed, head, None)

    def _taps(self, batch: ForwardBatch) -> list[torch.Tensor]:
        """[rows, size] each: what vision tokens get added after layer 0, 1, …"""
        if batch.vision_rows is None:
            return []
        return list(batch.vision_rows.split(self.spec.hidden_size, dim=1))[1:]
