"""Which linear layers run in 8-bit floats, and putting them into a model as its weights arrive.

A weight is quantised as soon as it is on the device, so a model is never held in both forms.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from sightline.errors import ConfigError
from sightline.models.fp8 import Fp8Linear, Fp8Weight
from sightline.models.model import VisionLanguageModel
from sightline.models.tower import VisionTower
from sightline.ops.fp8 import PLACES, has_scaled_mm
from sightline.spec import Fp8Spec

Quantization = Literal["none", "fp8"]
_LANGUAGE = "text.layers."
_TOWER = "vision.blocks."


@dataclass(frozen=True)
class Quantiser:
    """What becomes of each weight. `wanted` None: language layers stay as the checkpoint stores them."""

    wanted: Quantization | None = None
    tower: bool = False
    stored: Fp8Spec | None = None

    def __post_init__(self) -> None:
        if self.tower and self.wanted != "fp8":
            raise ConfigError("quantize_tower is on, but quantization is not 'fp8'.")

    def check_device(self, device: torch.device) -> None:
        keeps = self.wanted is None and self.stored is not None and self.stored.quantised_inputs
        if device.type == "cuda" and (keeps or self.wanted == "fp8") and not has_scaled_mm(device):
            major, minor = torch.cuda.get_device_capability(device)
            raise ConfigError(
                f"fp8 runs on GPUs of compute capability 9.0 (H100, H200), but {device} has {major}.{minor}; "
                "an fp8 checkpoint can be loaded with quantization 'none'."
            )

    def place(
        self,
        model: VisionLanguageModel,
        name: str,
        value: torch.Tensor | Fp8Weight,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        """Makes `value` the parameter `name`, replacing the nn.Linear that has it by an Fp8Linear where that is wanted."""
        owner, _, leaf = name.rpartition(".")
        module = model.get_submodule(owner)
        value = value.to(device)
        weight = self._choose(value) if leaf == "weight" and is_quantisable(owner, module, _LANGUAGE) else None
        if weight is not None:
            assert isinstance(module, nn.Linear)
            _replace(model, owner, Fp8Linear(weight, module.bias))
            return
        plain = value.dequantise() if isinstance(value, Fp8Weight) else value
        setattr(module, leaf, nn.Parameter(plain.to(dtype), requires_grad=False))

    def as_stored(self, name: str, value: torch.Tensor) -> torch.Tensor | Fp8Weight:
        """A made-up value of the parameter `name` in the form that the checkpoint would have it in."""
        if self.stored is None or not name.startswith(_LANGUAGE) or value.ndim != 2:
            return value
        return Fp8Weight.of(value, blocks=self.stored.scales == "block")

    def _choose(self, value: torch.Tensor | Fp8Weight) -> Fp8Weight | None:
        """A language layer's weight in 8-bit floats, or None if it is to be none."""
        if self.wanted == "fp8":
            if isinstance(value, Fp8Weight) and not value.has_blocks:
                return value
            return Fp8Weight.of(value.dequantise() if isinstance(value, Fp8Weight) else value)
        keeps = self.wanted is None and self.stored is not None and self.stored.quantised_inputs
        return value if keeps and isinstance(value, Fp8Weight) else None

    def finish(self, model: VisionLanguageModel) -> None:
        """The tower's layers, after the tower has laid out its heads."""
        if self.tower:
            quantise_tower(model.vision)


def quantise_tower(tower: VisionTower) -> None:
    """Puts the linear layers of a prepared tower's blocks into 8-bit floats."""
    for name, module in list(tower.named_modules()):
        if is_quantisable(name, module, "blocks."):
            assert isinstance(module, nn.Linear)
            _replace(tower, name, Fp8Linear(Fp8Weight.of(module.weight), module.bias))


def is_quantisable(name: str, module: nn.Module, part: str) -> bool:
    """Whether it is a linear layer of that part with sides that the product of 8-bit floats takes."""
    if not name.startswith(part) or not isinstance(module, nn.Linear):
        return False
    return not any(side % PLACES for side in module.weight.shape)


def _replace(model: nn.Module, name: str, module: nn.Module) -> None:
    owner, _, leaf = name.rpartition(".")
    setattr(model.get_submodule(owner), leaf, module)


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
    counts, left, saved = {_LANGUAGE: 0, _TOWER: 0}, {_LANGUAGE: 0, _TOWER: 0}, 0
    for part, module in _linears(model):
        if isinstance(module, Fp8Linear):
            counts[part] += 1
            saved += module.weight.numel() * (itemsize - 1) - 4 * module.weight_scale.numel()
        else:
            left[part] += 1
    return Fp8Summary(counts[_LANGUAGE], counts[_TOWER], sum(left[part] for part, count in counts.items() if count), saved)


def could_save(model: VisionLanguageModel, dtype: torch.dtype) -> tuple[int, int]:
    """Of a model in no 8-bit floats, maybe on the meta device: how many language layers fp8 would take, and the bytes saved."""
    shapes = [m.weight.shape for n, m in model.named_modules() if is_quantisable(n, m, _LANGUAGE) and isinstance(m, nn.Linear)]
    return len(shapes), sum(out * size * (dtype.itemsize - 1) - 4 * out for out, size in shapes)


def _linears(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    for name, module in model.named_modules():
        part = next((part for part in (_LANGUAGE, _TOWER) if name.startswith(part)), None)
        if part is not None and isinstance(module, nn.Linear | Fp8Linear):
            yield part, module
