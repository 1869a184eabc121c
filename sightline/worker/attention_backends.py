"""Which kernels attention runs, where the settings name a backend: what cannot run here is refused before anything does."""

import torch

from sightline.config import EngineConfig
from sightline.encoder.graphs import chosen_segment_attention
from sightline.errors import ConfigError
from sightline.models.model import VisionLanguageModel
from sightline.models.patch_tower import PatchTower
from sightline.ops.dispatch import NoKernelError, using_backend
from sightline.worker.workspaces import chosen_attention

_NEEDS = {
    "fa4": "flash-attn-4, a GPU of compute capability 9.0 or above, 16-bit numbers (keys and values, too), and heads and pages "
    "of its sizes",
    "triton": "Triton on a GPU, and heads of 64, 128 or 256; it has no kernel for towers",
}


def choose_backends(model: VisionLanguageModel, config: EngineConfig) -> None:
    """From now on the model's attention runs kernels of the backends in the settings."""
    model.use_backends(_backend(config.attention_backend), _backend(config.mm_attention_backend))
    weight = model.text.embed_tokens.weight
    index = f"in {str(weight.dtype).removeprefix('torch.')} on {weight.device.type}"
    if model.spec.text.has_attention:
        _check_language(model, config, index)
    elif model.language_backend is not None:
        raise ConfigError(
            f"attention_backend is {model.language_backend!r}, but the attention of this model, which is its family's own, "
            "cannot be chosen."
        )
    _check_tower(model, config, index)


def _check_language(model: VisionLanguageModel, config: EngineConfig, index: str) -> None:
    attention = model.spec.text.attention
    try:
        for queries in ((1, 1), (3, 1)):
            chosen_attention(model, config, queries)
    except NoKernelError:
        kept = " in 8-bit floats" if config.quantised_cache else ""
        heads = f"heads of {attention.head_dim} {index} with pages of {config.page_size}{kept}"
        raise _refusal("attention_backend", config.attention_backend, heads) from None


def choose_tower_backend(model: VisionLanguageModel, config: EngineConfig, device: torch.device, dtype: torch.dtype) -> None:
    """The same of a model whose tower alone is loaded."""
    model.use_backends(None, _backend(config.mm_attention_backend))
    _check_tower(model, config, f"in {str(dtype).removeprefix('torch.')} on {device.type}")


def _backend(name: str) -> str | None:
    return None if name == "auto" else name


def _check_tower(model: VisionLanguageModel, config: EngineConfig, index: str) -> None:
    if model.tower_backend is None:
        return
    if not isinstance(model.vision, PatchTower):
        raise ConfigError(
            f"mm_attention_backend is {model.tower_backend!r}, but the attention of this model's tower, which is its family's "
            "own, cannot be chosen."
        )
    try:
        with using_backend(model.tower_backend):
            chosen_segment_attention(model.vision)
    except NoKernelError:
        raise _refusal("mm_attention_backend", config.mm_attention_backend, f"the tower's heads {index}") from None


def _refusal(setting: str, backend: str, heads: str) -> ConfigError:
    return ConfigError(f"{setting} is {backend!r}, but it cannot run here for {heads}: it needs {_NEEDS[backend]}.")
