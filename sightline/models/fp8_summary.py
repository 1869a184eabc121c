"""What of a model is in 8-bit floats, or could be, and what that saves."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn

from sightline.models.linear import WeightMatrix
from sightline.models.model import VisionLanguageModel
from sightline.models.quantise import LANGUAGE_LAYERS, is_quantisable

_TOWER = "vision.blocks."


@dataclass(frozen=True)
class Fp8Summary:
    """What of a model is in 8-bit floats."""

    language: int  # linear layers
    tower: int
    left: int  # linear layers of a part that has some in 8-bit floats, which are not
    saved_bytes: int  # against the dtype that the rest is in

    def __str__(self) -> str:
        if not self.language + self.tower:
            return ""
        counts = {"language model": self.language, "tower": self.tower}
        parts = [f"{count} of the {part}'s" for part, count in counts.items() if count]
        left = f", {self.left} left as they are" if self.left else ""
        saved = self.saved_bytes / 1024**2
        amount = f"{saved / 1024:.2f} GiB" if saved >= 1024 else f"{saved:.1f} MiB"
        return f"fp8: {' and '.join(parts)} linear layers{left}, {amount} saved"


def summarise(model: VisionLanguageModel) -> Fp8Summary:
    """Of a loaded model."""
    itemsize = model.text.embed_tokens.weight.dtype.itemsize
    counts, left, saved = {LANGUAGE_LAYERS: 0, _TOWER: 0}, {LANGUAGE_LAYERS: 0, _TOWER: 0}, 0
    for part, module in _linears(model):
        if module.weight_scale is not None:
            counts[part] += 1
            saved += module.weight.numel() * (itemsize - 1) - 4 * module.weight_scale.numel()
        else:
            left[part] += 1
    return Fp8Summary(
        counts[LANGUAGE_LAYERS], counts[_TOWER], sum(left[part] for part, count in counts.items() if count), saved
    )


def could_save(model: VisionLanguageModel, dtype: torch.dtype) -> tuple[int, int]:
    """Of a model in no 8-bit floats, maybe on the meta device: how many language layers fp8 would take, and the bytes saved."""
    shapes = [
        m.weight.shape
        for n, m in model.named_modules()
        if isinstance(m, WeightMatrix) and is_quantisable(n, m, LANGUAGE_LAYERS)
    ]
    return len(shapes), sum(shape.numel() * (dtype.itemsize - 1) - 4 * shape[:-1].numel() for shape in shapes)


def _linears(model: nn.Module) -> Iterator[tuple[str, WeightMatrix]]:
    for name, module in model.named_modules():
        part = next((part for part in (LANGUAGE_LAYERS, _TOWER) if name.startswith(part)), None)
        if part is not None and isinstance(module, WeightMatrix) and not module.stays_plain:
            yield part, module
