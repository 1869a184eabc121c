"""Which linear layers run in 8-bit floats, and putting them into a model as its weights arrive.

A weight is quantised as soon as it is on the device, so a model is never held in both forms.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from sightline.errors import ConfigError
from sightline.models.fp8 import Fp8Weight
from sightline.models.linear import Linear, WeightMatrix
from sightline.models.model import VisionLanguageModel
from sightline.models.tower import Tower
from sightline.ops.fp8 import has_scaled_mm
from sightline.ops.triton.small_m_tilings import Form
from sightline.spec import Fp8Spec

Quantization = Literal["none", "fp8"]
LANGUAGE_LAYERS = "text.layers."  # how names of modules begin


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
        """Makes `value` the parameter `name`, in the format that is wanted."""
        owner, _, leaf = name.rpartition(".")
        module = model.get_submodule(owner)
        value = value.to(device)
        if leaf == "weight" and is_quantisable(owner, module, LANGUAGE_LAYERS):
            weight = self._choose(value)
            if weight is not None:
                assert isinstance(module, WeightMatrix)
                module.set_fp8(weight)
                return
        plain = value.dequantise() if isinstance(value, Fp8Weight) else value
        setattr(module, leaf, nn.Parameter(plain.to(dtype), requires_grad=False))

    def as_stored(self, name: str, value: torch.Tensor) -> torch.Tensor | Fp8Weight:
        """A made-up value of the parameter `name` in the form that the checkpoint would have it in."""
        if self.stored is None or not name.startswith(LANGUAGE_LAYERS) or value.ndim < 2:
            return value
        return Fp8Weight.of(value, blocks=self.stored.scales == "block")

    def form_of(self, name: str, module: nn.Module) -> Form:
        """What a matrix of that name will be in, if a checkpoint in 8-bit floats has all of its layers in them that may be."""
        if not is_quantisable(name, module, LANGUAGE_LAYERS):
            return "16-bit"
        if self.wanted == "fp8":
            return "fp8"
        if self.wanted == "none" or self.stored is None or not self.stored.quantised_inputs:
            return "16-bit"
        return "fp8 blocks" if self.stored.scales == "block" else "fp8"

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


def quantise_tower(tower: Tower) -> None:
    """Puts the linear layers of a prepared tower's blocks into 8-bit floats."""
    found = [module for name, module in tower.named_modules() if is_quantisable(name, module, "blocks.")]
    if not found:
        raise ConfigError("quantize_tower is on, but no linear layer of this model's tower can run in 8-bit floats.")
    for module in found:
        assert isinstance(module, Linear)
        module.set_fp8(Fp8Weight.of(module.weight))


def is_quantisable(name: str, module: nn.Module, part: str) -> bool:
    """Whether it is a matrix of that part, or a stack of them, with sides that the product of 8-bit floats takes."""
    return name.startswith(part) and isinstance(module, WeightMatrix) and module.fits_fp8
