"""A vision-language model: a tower and a decoder, and the spec both were made from."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from sightline.models.decoder import BUILT_IN, Decoder, Modules
from sightline.models.inputs import ForwardBatch, LayerCache
from sightline.models.linear import sum_over_ranks
from sightline.models.tower import Tower
from sightline.ops.dispatch import using_backend
from sightline.ops.workspace import Workspace
from sightline.parallel.group import Group
from sightline.parallel.split import Span
from sightline.spec import ModelSpec, PatchTowerSpec


class VisionLanguageModel(nn.Module):
    def __init__(self, spec: ModelSpec, tower: Tower, modules: Modules | None = None, vocabulary: int | None = None) -> None:
        """`modules`: those of its family, beside the built-in ones. `vocabulary`: how many tokens' rows of the embedding and
        the head this rank has; by default all."""
        super().__init__()
        self.spec = spec
        assert tower.embedding_width == spec.vision.embedding_width, (tower.embedding_width, spec.vision.embedding_width)
        self.vision = tower
        self.text = Decoder(spec.text, {**BUILT_IN, **(modules or {})}, vocabulary)
        self.language_backend: str | None = None
        self.tower_backend: str | None = None
        self.tower_digest = ""  # where it is wanted: models/tower_digest.py

    @property
    def varied_layers(self) -> tuple[int, ...]:
        """Layers that together do all that any does: each kind, some that take in deepstack features, one that does not."""
        layers, deepstack_features = self.spec.text.layers, self.spec.vision.num_deepstack_features
        kinds = {spec: index for index, spec in reversed(list(enumerate(layers)))}  # the first of each kind
        last = len(layers) - 1
        return tuple(sorted({*range(min(len(layers), deepstack_features + 1)), *kinds.values(), last}))

    def prepare(self, max_position: int) -> None:
        self.vision.prepare()
        self.text.prepare(max_position)

    def use_workspace(self, workspace: Workspace | None) -> None:
        """The decoder works in it (ops.linear). The tower has none: it runs on another stream."""
        self.text.use_workspace(workspace)

    def use_backends(self, language: str | None, tower: str | None) -> None:
        """Where attention's kernels come from; None: the fastest that there are. All that runs the model or asks what would run
        does so through `forward` and `encode`, or inside `using_backend` with these."""
        self.language_backend, self.tower_backend = language, tower

    def use_group(self, decoder: Group, tower: Group, vocabulary: tuple[Span, ...]) -> None:
        """The model is held together with other ranks. The tower has a group of its own: it runs on another stream."""
        self.text.use_group(decoder, vocabulary)
        if isinstance(self.spec.vision, PatchTowerSpec) and self.spec.vision.block.held_heads is not None:
            sum_over_ranks(self.vision, tower, within="blocks.")

    @torch.inference_mode()
    def encode(self, batch: Any) -> torch.Tensor:
        """Embedding rows of what the tower's make_batch has made, [rows, embedding_width]."""
        with using_backend(self.tower_backend):
            rows: torch.Tensor = self.vision(batch)
        return rows

    @torch.inference_mode()
    def forward(self, batch: ForwardBatch, caches: Sequence[LayerCache]) -> torch.Tensor:
        """Logits at `logits_indices`, [logits, vocab]."""
        with using_backend(self.language_backend):
            logits: torch.Tensor = self.text(batch, caches)
        return logits
