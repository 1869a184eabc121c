"""The language model: one decoder for every family, a list of layers; TextSpec says which."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import nn

from sightline.models.adapters import AdapterGates, add_pairs
from sightline.models.attention import Attention
from sightline.models.experts import Experts, Router
from sightline.models.inputs import ForwardBatch, LayerCache, LogitsIndices
from sightline.models.layers import GatedMLP, RMSNorm
from sightline.models.linear import Linear, TiedHead, sum_over_ranks
from sightline.models.rotary_tables import RotaryTables
from sightline.ops.linear import SMALL_M
from sightline.ops.merge_embeddings import merge_embeddings
from sightline.ops.workspace import Workspace
from sightline.parallel.group import Group
from sightline.parallel.split import Span
from sightline.spec import AttentionSpec, ExpertsSpec, GatedMLPSpec, LayerSpec, TextSpec


class Mixer(Protocol):
    """Mixes tokens of a sequence: attention, or a recurrence. Reads and writes the cache that its spec names."""

    out: Linear
    graph_safe: bool  # whether a CUDA graph of it stays right: it takes nothing that varies from the host

    def prepare(self, tables: RotaryTables) -> None:
        """Makes what does not come from the checkpoint."""

    def __call__(
        self, hidden: torch.Tensor, batch: ForwardBatch, cache: LayerCache, logits_indices: LogitsIndices | None
    ) -> torch.Tensor:
        """What `out` takes: of all tokens [tokens, size], or of those alone. All of them go into the cache."""


class MLP(Protocol):
    """Works on each token by itself. In a model with adapters both calls take the gates of the tokens as well: GatedMLP."""

    @property
    def graph_safe(self) -> bool:
        """As a mixer's."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor: ...

    def add_to(self, residual: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """residual + self(x), in the memory of `residual`."""


# What makes the modules that a LayerSpec names, by the type of its parts' specs: (spec, text spec) -> Mixer or MLP.
Modules = Mapping[type, Callable[[Any, TextSpec], Any]]
BUILT_IN: Modules = {
    AttentionSpec: lambda spec, text: Attention(spec, text.hidden_size, text.norm_eps),
    GatedMLPSpec: lambda spec, text: GatedMLP(text.hidden_size, spec.intermediate_size, bias=False),
    ExpertsSpec: lambda spec, text: Experts(spec, text.hidden_size),
}


def norm_of_sum(
    norm: RMSNorm,
    hidden: torch.Tensor,
    pending: torch.Tensor,
    deepstack: torch.Tensor | None,
    embedding_index: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(norm(total), total), where total is hidden + pending, and + deepstack[embedding_index] for vision tokens.

    deepstack [rows, size].
    """
    if deepstack is None or embedding_index is None:
        return norm.after_add(pending, hidden)
    return norm.after_add_of_rows(pending, hidden, deepstack, embedding_index)


class DecoderLayer(nn.Module):
    mixer: Mixer
    mlp: MLP

    def __init__(self, spec: LayerSpec, text: TextSpec, modules: Modules) -> None:
        super().__init__()
        self.input_norm = RMSNorm(text.hidden_size, text.norm_eps)
        self.mixer = modules[type(spec.mixer)](spec.mixer, text)
        self.attention_out_norm = RMSNorm(text.hidden_size, text.norm_eps) if text.sandwich_norm else None
        self.mlp_norm = RMSNorm(text.hidden_size, text.norm_eps)
        self.mlp = modules[type(spec.mlp)](spec.mlp, text)
        self.mlp_out_norm = RMSNorm(text.hidden_size, text.norm_eps) if text.sandwich_norm else None

    def forward(
        self,
        hidden: torch.Tensor,
        pending: torch.Tensor | None,
        deepstack: torch.Tensor | None,
        batch: ForwardBatch,
        cache: LayerCache,
        deepstack_follows: bool,
        logits_indices: LogitsIndices | None,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Takes hidden + pending (+ deepstack), returns hidden + pending: adds are left to the norm that follows them.

        With more rows than SMALL_M the GEMMs add to the residual in place instead, and nothing is pending: one pass over
        memory less each. `logits_indices`: those whose output anybody reads; all have their keys and values stored.
        """
        if pending is None:
            normed = self.input_norm(hidden)
        else:
            normed, hidden = norm_of_sum(self.input_norm, hidden, pending, deepstack, batch.embedding_index)
        mixed = self.mixer(normed, batch, cache, logits_indices)
        gates: tuple[torch.Tensor, ...] = () if batch.adapter_gates is None else (batch.adapter_gates,)
        if logits_indices is not None:
            hidden = hidden[logits_indices.index]
            gates = tuple(part[logits_indices.index] for part in gates)
            if not len(hidden):
                return hidden, None
        if self.attention_out_norm is not None and self.mlp_out_norm is not None:
            projected = self.attention_out_norm(self.mixer.out(mixed, *gates))
            normed, hidden = self.mlp_norm.after_add(projected, hidden)
            return hidden, self.mlp_out_norm(self.mlp(normed, *gates))
        if hidden.shape[0] <= SMALL_M:
            normed, hidden = self.mlp_norm.after_add(self.mixer.out(mixed, *gates), hidden)
            return hidden, self.mlp(normed, *gates)
        hidden = self.mixer.out.add_to(hidden, mixed, *gates)
        normed = self.mlp_norm(hidden)
        if deepstack_follows:
            return hidden, self.mlp(normed, *gates)
        return self.mlp.add_to(hidden, normed, *gates), None


class Decoder(nn.Module):
    def __init__(self, spec: TextSpec, modules: Modules = BUILT_IN, vocabulary: int | None = None) -> None:
        super().__init__()
        self.spec = spec
        rows = spec.vocab_size if vocabulary is None else vocabulary
        # Given a weight it draws none: normal numbers on the meta device would import torch's compiler, which takes a second.
        self.embed_tokens = nn.Embedding(rows, spec.hidden_size, _weight=torch.empty(rows, spec.hidden_size))
        self.layers: Sequence[DecoderLayer] = nn.ModuleList(DecoderLayer(layer, spec, modules) for layer in spec.layers)  # type: ignore[assignment]
        if spec.adapters:
            add_pairs(self.layers, spec.adapters)  # type: ignore[arg-type]
        self.adapter_gates: AdapterGates | None = None
        self.norm = RMSNorm(spec.hidden_size, spec.norm_eps)
        tied = spec.tie_word_embeddings
        self.lm_head = TiedHead(self.embed_tokens) if tied else Linear(spec.hidden_size, rows, bias=False)
        self.ranks: tuple[Group, tuple[Span, ...]] | None = None  # with the spans of the vocabulary that they have

    def prepare(self, max_position: int) -> None:
        """Makes what does not come from the checkpoint; called once after the weights are loaded."""
        weight = self.embed_tokens.weight
        tables = RotaryTables(max_position, weight.device)
        for layer in self.layers:
            layer.mixer.prepare(tables)
        if self.spec.adapters:
            self.adapter_gates = AdapterGates(self.spec.adapters, weight.device, weight.dtype)

    def use_workspace(self, workspace: Workspace | None) -> None:
        """Linear maps work in it from now on; captured graphs hold its address."""
        for module in self.modules():
            if isinstance(module, Linear | TiedHead | Router):
                module.workspace = workspace

    def use_group(self, group: Group, vocabulary: tuple[Span, ...]) -> None:
        """The model is held together with other ranks: sums over them are made where parts of sums are."""
        self.ranks = group, vocabulary
        sum_over_ranks(self, group)

    @contextmanager
    def only(self, indices: Sequence[int]) -> Iterator[None]:
        """Inside, the decoder has these layers alone: enough to see what a step takes, if the others are like them."""
        every = self.layers
        self.layers = nn.ModuleList(every[index] for index in indices)  # type: ignore[assignment]
        try:
            yield
        finally:
            self.layers = every

    def forward(self, batch: ForwardBatch, caches: Sequence[LayerCache]) -> torch.Tensor:
        """Logits at `logits_indices`, [logits, vocab], in the model's dtype."""
        hidden = self._embed(batch)
        deepstack_features = self._deepstack_features(batch)
        pending, deepstack = None, None
        for index, (layer, cache) in enumerate(zip(self.layers, caches, strict=True)):
            deepstack_follows, is_last = index < len(deepstack_features), index == len(self.layers) - 1
            logits_indices = batch.logits_indices if is_last else None
            hidden, pending = layer(hidden, pending, deepstack, batch, cache, deepstack_follows, logits_indices)
            deepstack = deepstack_features[index] if deepstack_follows else None
        rows = None if deepstack is None or batch.embedding_index is None else batch.embedding_index[batch.logits_indices.index]
        if pending is None:
            normed = self.norm(hidden)
        else:
            normed, _ = norm_of_sum(self.norm, hidden, pending, deepstack, rows)
        logits: torch.Tensor = self.lm_head(normed)
        if self.ranks is not None:
            group, vocabulary = self.ranks
            logits = group.all_gather(logits, vocabulary, dim=1)
        return logits

    def _embed(self, batch: ForwardBatch) -> torch.Tensor:
        table, ids = self.embed_tokens.weight, batch.token_ids
        if self.ranks is None:
            return merge_embeddings(ids, table, batch.vision_embeddings, batch.embedding_index)
        group, vocabulary = self.ranks
        first, count = vocabulary[group.rank]
        mine = (ids >= first) & (ids < first + count)
        text = merge_embeddings((ids - first).masked_fill_(~mine, 0), table, None, None)
        group.all_reduce_(text.masked_fill_(~mine[:, None], 0))
        return merge_embeddings(torch.arange(len(ids), device=ids.device), text, batch.vision_embeddings, batch.embedding_index)

    def _deepstack_features(self, batch: ForwardBatch) -> list[torch.Tensor]:
        """[rows, size] each: what vision tokens get added after layer 0, 1, …"""
        if batch.vision_embeddings is None:
            return []
        return list(batch.vision_embeddings.split(self.spec.hidden_size, dim=1))[1:]
