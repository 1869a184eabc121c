"""Checkpoints as fp8 ones are published, made from tiny ones, and what they mean, worked out with numpy alone."""

import json
import re
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from sightline.models.fp8 import Fp8Weight
from sightline.models.linear import WeightMatrix
from sightline.models.load import load_model
from sightline.models.model import VisionLanguageModel
from sightline.models.quantise import Quantiser
from sightline.models.registry import read_model_spec

Form = Literal["block", "channel", "tensor", "block-compressed"]
_MATRIX = re.compile(r"model\.language_model\.layers\.\d+\..*_proj(_qkv|_z)?(\.weight)?$")


def e4m3_values() -> np.ndarray[Any, np.dtype[np.float32]]:
    """What each of the 256 bytes means: sign, 4 bits of exponent with bias 7, 3 bits of mantissa; 127 and 255 are NaN."""
    bits = np.arange(256)
    exponent, mantissa = (bits >> 3) & 15, bits & 7
    size = np.where(exponent == 0, mantissa / 8 * 2.0**-6, (1 + mantissa / 8) * 2.0 ** (exponent - 7.0))
    size[(bits & 127) == 127] = np.nan
    return np.where(bits & 128, -size, size).astype(np.float32)


def nearest_bytes(numbers: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """The byte whose value is nearest, found by looking at all of them."""
    values = e4m3_values()
    order = np.argsort(np.where(np.isnan(values), np.inf, values))[:254]
    levels = values[order]
    upper = np.clip(np.searchsorted(levels, numbers), 1, len(levels) - 1)
    closer_below = np.abs(numbers - levels[upper - 1]) <= np.abs(numbers - levels[upper])
    return order[np.where(closer_below, upper - 1, upper)].astype(np.uint8)


def spread(scale: np.ndarray[Any, Any], shape: tuple[int, int], form: Form) -> np.ndarray[Any, Any]:
    """A scale for each number of a matrix."""
    if form.startswith("block"):
        return np.repeat(np.repeat(scale, 128, 0), 128, 1)[: shape[0], : shape[1]]
    return np.broadcast_to(scale.reshape(-1, 1), shape)


def quantised(matrix: np.ndarray[Any, Any], form: Form) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    out, size = matrix.shape
    if form == "tensor":
        scale = np.abs(matrix).max(keepdims=True).reshape(1) / 448
    elif form == "channel":
        scale = np.abs(matrix).max(1, keepdims=True) / 448
    else:
        scale = np.zeros((-(-out // 128), -(-size // 128)))
        for i, j in np.ndindex(scale.shape):
            scale[i, j] = np.abs(matrix[i * 128 : (i + 1) * 128, j * 128 : (j + 1) * 128]).max() / 448
    scale = scale.astype(np.float32)
    return nearest_bytes(matrix / spread(scale, matrix.shape, form)), scale


def quantised_experts(
    stack: np.ndarray[Any, Any], form: Form, transposed: bool
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Bytes, scales and meaning of experts' matrices, one at a time: [experts, in, out], as Qwen3-VL-MoE has them, or
    [experts, out, in], as Qwen3.5-MoE.

    A scale for a whole matrix nobody publishes: those forms have one per output channel.
    """
    form, found = "channel" if form == "tensor" else form, []
    for matrix in stack:
        stored, scale = quantised(matrix.T if transposed else matrix, form)
        each = stored, scale, e4m3_values()[stored] * spread(scale, stored.shape, form)
        found.append(tuple(one.T for one in each) if transposed else each)
    stored_bytes, scales, meaning = (np.stack(each) for each in zip(*found, strict=True))
    return stored_bytes, scales, meaning


def quantization_config(form: Form) -> dict[str, Any]:
    if form == "block":
        return {
            "quant_method": "fp8",
            "fmt": "e4m3",
            "activation_scheme": "dynamic",
            "weight_block_size": [128, 128],
            "modules_to_not_convert": ["lm_head", "model.visual"],
        }
    numbers = {"num_bits": 8, "type": "float", "symmetric": True, "actorder": None, "observer_kwargs": {}}
    blocks = form == "block-compressed"
    weights = {"strategy": "block" if blocks else form, "dynamic": False, "observer": "minmax", "group_size": None}
    inputs = {"strategy": "group" if blocks else "token", "dynamic": True, "observer": None}
    if blocks:
        weights["block_structure"], inputs["group_size"] = [128, 128], 128
    return {
        "quant_method": "compressed-tensors",
        "format": "float-quantized",
        "quantization_status": "compressed",
        "kv_cache_scheme": None,
        "sparsity_config": {},
        "ignore": ["lm_head", "re:.*visual.*"],
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": {**numbers, **weights},
                "input_activations": {**numbers, **inputs},
                "output_activations": None,
            }
        },
    }


def write_fp8(source: Path, stored: Path, meant: Path, form: Form) -> None:
    """From a float32 checkpoint, `stored` with quantised language layers, and `meant` with the same numbers in float32."""
    suffix = "_scale_inv" if form == "block" else "_scale"
    transposed = json.loads((source / "config.json").read_text())["model_type"] != "qwen3_5_moe"
    values = e4m3_values()
    quantised_tensors: dict[str, torch.Tensor] = {}
    plain_tensors: dict[str, torch.Tensor] = {}
    for name, tensor in load_file(source / "model.safetensors").items():
        quantised_tensors[name] = plain_tensors[name] = tensor
        if _MATRIX.match(name):
            if tensor.ndim == 3:
                stored_bytes, scale, meaning = quantised_experts(tensor.double().numpy(), form, transposed)
            else:
                stored_bytes, scale = quantised(tensor.double().numpy(), form)
                meaning = values[stored_bytes] * spread(scale, stored_bytes.shape, form)
            quantised_tensors[name] = torch.from_numpy(stored_bytes).view(torch.float8_e4m3fn)
            quantised_tensors[name + suffix] = torch.from_numpy(scale)
            plain_tensors[name] = torch.from_numpy(meaning.astype(np.float32))
    for folder, tensors in ((stored, quantised_tensors), (meant, plain_tensors)):
        folder.mkdir()
        for file in source.iterdir():
            if file.suffix != ".safetensors":
                (folder / file.name).write_bytes(file.read_bytes())
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    config = json.loads((stored / "config.json").read_text())
    config["quantization_config"] = quantization_config(form)
    (stored / "config.json").write_text(json.dumps(config))


def load(folder: Path, quantiser: Quantiser | None = None) -> VisionLanguageModel:
    return load_model(read_model_spec(folder), folder, torch.device("cpu"), torch.float32, 64, quantiser=quantiser)


def fp8_layers(model: nn.Module) -> dict[str, WeightMatrix]:
    return {name: module for name, module in model.named_modules() if isinstance(module, WeightMatrix) and module.is_fp8}


def plain_weight(layer: WeightMatrix) -> torch.Tensor:
    return Fp8Weight(layer.weight, layer.weight_scale).dequantise()
