"""The published checkpoint's tensors: all of them are known, those of audio are not loaded; and what two ranks have of them."""

import json
import logging
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.harness import plain_answer, request_of
from models.weight_trees import uses
from parallel.test_tensor_parallel import started
from parity.conversations import picture
from sightline.errors import CheckpointError, ConfigError
from sightline.models.load import load_model
from sightline.models.registry import family_named, read_model_spec
from sightline.models.sharding import shard_model

CPU = torch.device("cpu")
_IMAGE = "model.embed_tokens_extend.image_embed"
_AUDIO = "model.embed_tokens_extend.audio_embed"
# Names beside those that are loaded, as public conversions of the published checkpoint have them.
NOT_LOADED = (
    f"{_AUDIO}.encoder.encoders.0.self_attn.linear_q.weight",
    f"{_AUDIO}.audio_projection.vision.0.bias",
    f"{_AUDIO}.audio_projection.speech.2.weight",
    f"{_IMAGE}.img_processor.encoder.layers.2.self_attn.q_proj.bias",
    f"{_IMAGE}.img_processor.post_layernorm.weight",
    f"{_IMAGE}.img_processor.head.attention.in_proj_weight",
    "model.layers.0.self_attn.qkv_proj.lora_A.speech.weight",
    "model.layers.2.mlp.down_proj.lora_B.speech.weight",
)


def with_tensors(folder: Path, new: Path, names: tuple[str, ...]) -> Path:
    for file in folder.iterdir():
        (new / file.name).write_bytes(file.read_bytes())
    stored = load_file(folder / "model.safetensors")
    save_file({**stored, **{name: torch.ones(3) for name in names}}, new / "model.safetensors")
    return new


def test_names_are_the_published_ones(phi4: Path) -> None:
    """Red if `model new` writes, or the table reads, other names than public conversions of the checkpoint do."""
    stored = load_file(phi4 / "model.safetensors")
    assert stored[f"{_IMAGE}.sub_GN"].shape == (1, 1, 1, 64) and stored[f"{_IMAGE}.glb_GN"].shape == (1, 1, 64)
    layer = "model.layers.1."
    found = {name.removeprefix(layer) for name in stored if name.startswith(layer)}
    matrices = ("self_attn.qkv_proj", "self_attn.o_proj", "mlp.gate_up_proj", "mlp.down_proj")
    kinds = ("base_layer", "lora_A.vision", "lora_B.vision")
    expected = {f"{matrix}.{kind}.weight" for matrix in matrices for kind in kinds}
    assert found == expected | {"input_layernorm.weight", "post_attention_layernorm.weight"}


def test_every_stored_number_is_used_once(phi4: Path) -> None:
    table = family_named("phi4-multimodal").weight_table(read_model_spec(phi4))
    for name, count in uses(table).items():
        assert (count == 1).all(), name


def test_audio_and_its_adapter_are_known_and_not_loaded(phi4: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    spec = read_model_spec(phi4)
    caplog.set_level(logging.INFO, "sightline.engine")
    load_model(spec, with_tensors(phi4, tmp_path, NOT_LOADED), CPU, torch.float32, 64)
    assert f"{len(NOT_LOADED)} tensors of the checkpoint are known and not loaded" in caplog.text
    assert "audio_embed" in caplog.text and "speech" in caplog.text


@pytest.mark.parametrize("name", ["model.layers.0.mlp.down_proj.lora_A.video.weight", "model.layers.0.mlp.down_proj.weight"])
def test_other_tensors_are_refused(phi4: Path, tmp_path: Path, name: str) -> None:
    """Red if an adapter that nobody knows is left out unsaid, or merged weights are taken beside base ones."""
    with pytest.raises(CheckpointError, match=name):
        load_model(read_model_spec(phi4), with_tensors(phi4, tmp_path, (name,)), CPU, torch.float32, 64)


@pytest.mark.parametrize(
    ("field", "value", "word"),
    [
        ("sliding_window", 4096, "sliding_window"),
        ("vision_lora", {"r": 8, "lora_alpha": 4, "layer": "layers.*mlp"}, "layer"),
        ("rope_scaling", {"type": "longrope", "short_factor": [1.0], "long_factor": [1.0] * 12}, "12 numbers"),
        ("rope_scaling", {"type": "yarn", "short_factor": [1.0] * 12, "long_factor": [1.0] * 12}, "yarn"),
        ("mlp_bias", True, "mlp_bias"),
        ("interpolate_factor", 2, "interpolate_factor"),
        ("another", 1, "another"),
    ],
)
def test_fields_that_change_the_numbers_are_refused(phi4: Path, tmp_path: Path, field: str, value: object, word: str) -> None:
    config = json.loads((phi4 / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, field: value}))
    with pytest.raises(ConfigError, match=word):
        read_model_spec(tmp_path)


def test_a_config_that_names_code_is_read_without_it(phi4: Path, tmp_path: Path) -> None:
    """The published files name code of their own, which is never looked for. Red if they are refused, or others are not."""
    config = json.loads((phi4 / "config.json").read_text())
    named = {**config, "auto_map": {"AutoModelForCausalLM": "modeling_phi4mm.Phi4MMForCausalLM"}}
    (tmp_path / "config.json").write_text(json.dumps(named))
    assert read_model_spec(tmp_path) == read_model_spec(phi4)
    (tmp_path / "config.json").write_text(json.dumps({**named, "model_type": "qwen3_vl"}))
    with pytest.raises(ConfigError, match="remote code is refused"):
        read_model_spec(tmp_path)


# ---- Several ranks


def test_two_ranks_have_halves_of_pairs(phi4: Path) -> None:
    """Of B the outputs that a rank has, of A the inputs; the other one whole. Red if a rank's product with a pair would be of
    other rows than that with its matrix."""
    spec = read_model_spec(phi4)
    whole = dict(load_model(spec, phi4, CPU, torch.float32, 64).named_parameters())
    halves = [
        dict(load_model(spec, phi4, CPU, torch.float32, 64, shard=shard_model(spec, rank, 2)).named_parameters())
        for rank in (0, 1)
    ]
    for matrix, cut in (("mixer.qkv", "up"), ("mixer.out", "down"), ("mlp.gate_up", "up"), ("mlp.down", "down")):
        name, axis = f"text.layers.1.{matrix}", 0 if cut == "up" else 1
        kept = "down" if cut == "up" else "up"
        product = whole[f"{name}.low_rank.up"] @ whole[f"{name}.low_rank.down"]
        for half in halves:
            assert torch.equal(half[f"{name}.low_rank.{kept}"], whole[f"{name}.low_rank.{kept}"])
            own, pair = half[f"{name}.weight"], half[f"{name}.low_rank.up"] @ half[f"{name}.low_rank.down"]
            assert own.shape == pair.shape
            # Each row (or column) of the rank's matrix is one of the whole's, and its pair's product is of the same one.
            for index in range(0, own.shape[axis], 7):
                here = own.select(axis, index)
                (place,) = (whole[f"{name}.weight"] == here.unsqueeze(axis)).all(1 - axis).nonzero().flatten().tolist()
                torch.testing.assert_close(pair.select(axis, index), product.select(axis, place))


@pytest.mark.slow
def test_ranks_answer_as_one(phi4: Path) -> None:
    requests = [request_of(phi4, "One ", picture(101, 99, 1), "?"), request_of(phi4, "Plain text, no picture at all.")] * 2
    run = started(phi4, 2, max_num_batched_tokens=48, kv_cache_gb=0.008)
    try:
        numbers = [run.add(request, tokens=9) for request in requests]
        run.run()
        assert not run.errors
        assert [run.tokens(number) for number in numbers] == [plain_answer(phi4, request, 9) for request in requests]
    finally:
        run.engine.close()
