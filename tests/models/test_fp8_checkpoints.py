"""Published fp8 checkpoints: their configs, and their weights against what numpy makes of them."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from assets import asset
from conftest import FAMILIES, IN_VIEWS
from models.fp8_checkpoints import Form, fp8_layers, load, plain_weight, quantization_config, write_fp8
from sightline.errors import CheckpointError, ConfigError, UserError
from sightline.models.fields import Fields
from sightline.models.linear import Linear
from sightline.models.quantise import Quantiser
from sightline.models.quantization_config import read_quantization
from sightline.models.registry import read_model_spec
from sightline.spec import AttentionSpec, Fp8Spec

FORMS: tuple[Form, ...] = ("block", "channel", "tensor", "block-compressed")
_BLOCK_GROUP = quantization_config("block-compressed")["config_groups"]["group_0"]


@pytest.mark.parametrize(
    "name", ["Qwen3-VL-4B-Thinking-FP8", "Qwen3-VL-32B-Thinking-FP8", "Qwen3.5-27B-FP8", "Qwen3.6-27B-FP8"]
)
def test_real_configs_of_qwen(name: str) -> None:
    assert read_model_spec(asset("configs") / name).fp8 == Fp8Spec("block", "_scale_inv", True)


def test_a_real_config_of_compressed_tensors() -> None:
    config = json.loads((asset("configs") / "GLM-4.6V-FP8" / "config.json").read_text())
    assert read_quantization(Fields(config["quantization_config"], "it")) == Fp8Spec("channel", "_scale", True)


def test_weights_alone_in_8_bits() -> None:
    config = quantization_config("channel")
    config["config_groups"]["group_0"]["input_activations"] = None
    config["sparsity_config"] = {"format": "dense", "targets": [], "ignore": []}
    assert read_quantization(Fields(config, "it")) == Fp8Spec("channel", "_scale", False)


@pytest.mark.parametrize(
    ("form", "path", "value", "word"),
    [
        ("block", "quant_method", "awq", "awq"),
        ("block", "fmt", "e5m2", "e5m2"),
        ("block", "activation_scheme", "static", "static"),
        ("block", "weight_block_size", [64, 64], "weight_block_size"),
        ("block", "weight_block_size", None, "weight_block_size"),
        ("block", "scale_fmt", "ue8m0", "ue8m0"),
        ("block", "modules_to_convert", ["model.embed_tokens"], "modules_to_convert"),
        ("block", "modules_to_not_convert", "lm_head", "modules_to_not_convert"),
        ("channel", "format", "int-quantized", "int-quantized"),
        ("channel", "kv_cache_scheme", {"num_bits": 8}, "kv_cache_scheme"),
        ("channel", "sparsity_config", {"format": "sparse-24"}, "sparse-24"),
        ("channel", "config_groups.group_0.weights.num_bits", 4, "num_bits"),
        ("channel", "config_groups.group_0.weights.type", "int", "int"),
        ("channel", "config_groups.group_0.weights.strategy", "group", "strategy"),
        ("channel", "config_groups.group_0.weights.actorder", "weight", "actorder"),
        ("channel", "config_groups.group_0.weights.symmetric", False, "symmetric"),
        ("channel", "config_groups.group_0.input_activations.dynamic", False, "dynamic"),
        ("channel", "config_groups.group_0.input_activations.dynamic", None, "dynamic"),
        ("channel", "config_groups.group_0.input_activations.strategy", "tensor", "strategy"),
        ("channel", "config_groups.group_0.output_activations", {"num_bits": 8}, "output_activations"),
        ("block-compressed", "config_groups.group_0.weights.block_structure", [64, 64], "block_structure"),
        ("block-compressed", "config_groups.group_0.input_activations.group_size", 64, "group_size"),
        (
            "channel",
            "config_groups.group_1",
            quantization_config("block-compressed")["config_groups"]["group_0"],
            "2 different",
        ),
    ],
)
def test_other_quantisations_are_refused_by_name(form: Form, path: str, value: Any, word: str) -> None:
    config = copy.deepcopy(quantization_config(form))
    *outer, leaf = path.split(".")
    place = config
    for step in outer:
        place = place[step]
    place[leaf] = value
    with pytest.raises(ConfigError, match=word) as caught:
        read_quantization(Fields(config, "config.json quantization_config"))
    assert "\n" not in str(caught.value)


class Published(dict[tuple[str, Form], Path]):
    """Folders with 'stored' and 'meant' checkpoints by family and form, written when they are asked for."""

    def __init__(self, plain: dict[str, Path], folders: pytest.TempPathFactory) -> None:
        self._plain, self._folders = plain, folders

    def __missing__(self, key: tuple[str, Form]) -> Path:
        folder = self[key] = self._folders.mktemp("-".join(key))
        write_fp8(self._plain[key[0]], folder / "stored", folder / "meant", key[1])
        return folder


@pytest.fixture(scope="module")
def published(tiny_checkpoints: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Published:
    return Published(tiny_checkpoints, tmp_path_factory)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("family", (*FAMILIES, *IN_VIEWS))
def test_stored_weights_mean_what_numpy_says(published: Published, family: str, form: Form) -> None:
    """Dequantised they are numpy's, bit for bit; kept as stored they are too, scales of merged matrices included."""
    folder = published[family, form]
    spec = read_model_spec(folder / "stored")
    meant, kept = load(folder / "meant"), load(folder / "stored")
    plain = load(folder / "stored", Quantiser("none", stored=spec.fp8))
    assert not fp8_layers(plain) and plain.state_dict().keys() == meant.state_dict().keys()
    assert all(torch.equal(value, meant.state_dict()[name]) for name, value in plain.state_dict().items())
    layers = fp8_layers(kept)
    gates = sum(isinstance(layer.mixer, AttentionSpec) and layer.mixer.output_gate for layer in spec.text.layers)
    matrices = 4 * spec.text.num_layers + gates
    assert len(layers) >= 2 * spec.text.num_layers and any(name.endswith("mlp.down") for name in layers)
    for name, layer in layers.items():
        assert layer.has_blocks == form.startswith("block")
        assert torch.equal(plain_weight(layer), meant.get_submodule(name).weight), name
    if not form.startswith("block"):
        assert len(layers) == matrices
    again = load(folder / "stored", Quantiser("fp8", stored=spec.fp8))
    assert len(fp8_layers(again)) == matrices and not any(x.has_blocks for x in fp8_layers(again).values())


def test_blocks_are_stacked_where_no_block_reaches_over_a_seam(published: Published) -> None:
    """Tiny GLM has one gate-and-up matrix of 384 rows, tiny Qwen two of 192: the latter's blocks cannot be stacked."""
    for family, whole in (("glm-4.1v", True), ("qwen3-vl", False)):
        kept = load(published[family, "block"] / "stored")
        gate_up = kept.get_submodule("text.layers.0.mlp.gate_up")
        assert isinstance(gate_up, Linear) and gate_up.is_fp8 == whole


def damaged(folder: Path, tmp_path: Path, what: str) -> Path:
    copied = tmp_path / "damaged"
    copied.mkdir()
    for file in folder.iterdir():
        (copied / file.name).write_bytes(file.read_bytes())
    tensors = load_file(copied / "model.safetensors")
    weight = "model.language_model.layers.0.mlp.down_proj.weight"
    if what == "no scale":
        del tensors[weight + "_scale"]
    elif what == "wrong scale":
        tensors[weight + "_scale"] = torch.ones(7)
    elif what == "scale without 8 bits":
        tensors[weight] = tensors[weight].float()
    elif what == "static input":
        tensors["model.language_model.layers.0.mlp.down_proj.input_scale"] = torch.ones(1)
    elif what == "other 8 bits":
        tensors[weight] = tensors[weight].float().to(torch.float8_e5m2)
    elif what == "no config":
        config = json.loads((copied / "config.json").read_text())
        del config["quantization_config"]
        (copied / "config.json").write_text(json.dumps(config))
    save_file(tensors, copied / "model.safetensors")
    return copied


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("no scale", "lacks its scales 'text.layers.0.mlp.down_proj.weight_scale'"),
        ("wrong scale", r"shape \[7\], expected \[128, 1\]"),
        ("scale without 8 bits", "down_proj.weight_scale', which nothing uses"),
        ("static input", "down_proj.input_scale', which nothing uses"),
        ("other 8 bits", "F8_E5M2"),
        ("no config", "no 'quantization_config'"),
    ],
)
def test_what_does_not_fit_is_refused(published: Published, tmp_path: Path, what: str, words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        load(damaged(published["qwen3-vl", "channel"] / "stored", tmp_path, what))
    assert isinstance(caught.value, CheckpointError) and "\n" not in str(caught.value)
