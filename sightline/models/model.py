"""A vision-language model: a tower and a decoder, and the spec both were made from."""

import torch
from torch import nn

from sightline.models.decoder import Decoder
from sightline.models.inputs import ForwardBatch, LayerCache, TowerBatch
from sightline.models.tower import VisionTower
from sightline.spec import ModelSpec


class VisionLanguageModel(nn.Module):
    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.spec = spec
        self.vision = VisionTower(spec.vision)
        self.text = Decoder(spec.text)

    @property
    def varied_layers(self) -> int:
        """So many first layers of the decoder do all that any does: some take in image rows, one does not, one is the last."""
        return min(len(self.text.layers), len(self.spec.vision.deepstack_layers) + 2)

    def prepare(self, max_position: int) -> None:
        self.vision.prepare()
        self.text.prepare(max_position)

    @torch.inference_mode()
    def encode(self, batch: TowerBatch) -> torch.Tensor:
        """Embedding rows of images and videos, [rows, row_width]."""
        rows: torch.Tensor = self.vision(batch)
        return rows

    @torch.inference_mode()
    def forward(self, batch: ForwardBatch, caches: list[LayerCache]) -> torch.Tensor:
        """Logits of the wanted tokens, [wanted, vocab]."""
        logits: torch.Tensor = self.text(batch, caches)
        return logits
