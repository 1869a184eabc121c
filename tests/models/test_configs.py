"""config.json and processor files to specs: real ones are understood, wrong ones are refused by name."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from assets import asset
from sightline.config import MediaConfig
from sightline.errors import ConfigError
from sightline.models.generation import read_generation_defaults
from sightline.models.load import empty_model
from sightline.models.registry import family_named, read_model_spec, read_processor_spec

# Parameters and stored tensors of the published checkpoints; the first two equal the real files' own counts.
REAL = {
    "Qwen3-VL-2B-Instruct": (2_127_532_032, 625),
    "Qwen3-VL-8B-Instruct": (8_767_123_696, 750),
    "Qwen3-VL-4B-Instruct": (4_437_815_808, 713),
    "Qwen3-VL-4B-Thinking": (4_437_815_808, 713),
    "Qwen2.5-VL-3B-Instruct": (3_754_622_976, 824),
    "Qwen2.5-VL-7B-Instruct": (8_292_166_656, 729),
    "Qwen2.5-VL-32B-Instruct": (33_452_718_336, 1161),
    "Qwen2.5-VL-72B-Instruct": (73_410_777_344, 1353),
    "Qwen3.5-0.8B": (852_985_920, 473),
    "Qwen3.5-2B": (2_213_241_664, 617),
    "Qwen3.5-4B": (4_539_265_536, 723),
    "Qwen3.5-9B": (9_409_813_744, 760),
    "Qwen3.5-27B": (27_356_728_560, 1184),
    "Qwen3.5-35B-A3B": (35_107_181_936, 1026),
    "Qwen3.6-35B-A3B": (35_107_181_936, 1026),
    "Qwen3.5-122B-A10B": (122_562_817_776, 1164),
    "Qwen3.5-397B-A17B": (396_802_360_816, 1371),
    "Qwen3.6-27B": (27_356_728_560, 1184),
    "GLM-4.1V-9B-Thinking": (10_292_777_472, 704),
    "GLM-4.6V-Flash": (10_292_777_472, 704),
    "Qwen3-VL-30B-A3B-Instruct": (31_070_754_032, 882),
    "Qwen3-VL-30B-A3B-Thinking": (31_070_754_032, 882),
    "Qwen3-VL-235B-A22B-Thinking": (235_670_022_896, 1388),
    # Without audio and what is behind the tower's last features; the language model alone has Phi-4-mini's 3,836,021,760.
    "Phi-4-multimodal-instruct": (4_616_190_368, 875),
    "GLM-4.5V": (107_710_933_120, 18106),
    "GLM-4.6V": (107_710_933_120, 18106),
    "Step3-VL-10B": (10_171_750_144, 1066),  # of a config put together from public code; the real file's count is not known
}


@pytest.mark.parametrize("name", REAL)
def test_real_config_gives_the_right_parameters(name: str) -> None:
    folder = asset("configs") / name
    spec = read_model_spec(folder)
    model = empty_model(spec)
    parameters = dict(model.named_parameters())
    table = family_named(spec.family).weight_table(spec)
    assert set(table) == set(parameters)
    assert (sum(p.numel() for p in parameters.values()), len(table.stored())) == REAL[name]
    read_processor_spec(folder, spec, MediaConfig())


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("gemma-4-26B-A4B", "gemma4"),
        ("GLM-OCR", "glm_ocr"),
        ("glm-4v-9b", "remote code"),
    ],
)
def test_other_models_are_refused_by_name(name: str, word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        read_model_spec(asset("configs") / name)


@pytest.mark.parametrize(
    ("family", "size", "real"),
    [
        ("qwen3-vl", "2b", "Qwen3-VL-2B-Instruct"),
        ("qwen3-vl", "4b", "Qwen3-VL-4B-Instruct"),
        ("qwen3-vl", "8b", "Qwen3-VL-8B-Instruct"),
        ("qwen3.5", "0.8b", "Qwen3.5-0.8B"),
        ("qwen3.5", "2b", "Qwen3.5-2B"),
        ("qwen3.5", "4b", "Qwen3.5-4B"),
        ("qwen3.5", "9b", "Qwen3.5-9B"),
        ("qwen3.5", "27b", "Qwen3.5-27B"),
        ("qwen3.5-moe", "35b-a3b", "Qwen3.5-35B-A3B"),
        ("qwen3.5-moe", "122b-a10b", "Qwen3.5-122B-A10B"),
        ("qwen3.5-moe", "397b-a17b", "Qwen3.5-397B-A17B"),
        ("qwen2.5-vl", "3b", "Qwen2.5-VL-3B-Instruct"),
        ("qwen2.5-vl", "7b", "Qwen2.5-VL-7B-Instruct"),
        ("qwen2.5-vl", "32b", "Qwen2.5-VL-32B-Instruct"),
        ("qwen2.5-vl", "72b", "Qwen2.5-VL-72B-Instruct"),
        ("glm-4.1v", "9b", "GLM-4.1V-9B-Thinking"),
        ("glm-4.6v-flash", "9b", "GLM-4.6V-Flash"),
        ("qwen3-vl-moe", "30b-a3b", "Qwen3-VL-30B-A3B-Instruct"),
        ("qwen3-vl-moe", "235b-a22b", "Qwen3-VL-235B-A22B-Instruct"),
        ("glm-4.5v", "108b-a12b", "GLM-4.5V"),
        ("glm-4.6v", "108b-a12b", "GLM-4.6V"),
        ("step3-vl", "10b", "Step3-VL-10B"),
        ("phi4-multimodal", "5.6b", "Phi-4-multimodal-instruct"),
    ],
)
def test_new_models_have_the_real_specs(tmp_path: Path, family: str, size: str, real: str) -> None:
    """`model new` writes configs that mean the same as the published ones, token ids included."""
    from sightline.models.create import create_checkpoint

    create_checkpoint(tmp_path / "model", family, size, weights=False)
    ours, theirs = read_model_spec(tmp_path / "model"), read_model_spec(asset("configs") / real)
    assert ours.family == theirs.family == family
    assert (ours.text, ours.vision, ours.tokens) == (theirs.text, theirs.vision, theirs.tokens)
    processors = [read_processor_spec(folder, ours, MediaConfig()) for folder in (tmp_path / "model", asset("configs") / real)]
    assert processors[0] == processors[1]


def changed(folder: Path, tmp_path: Path, file: str, change: dict[str, Any]) -> Path:
    """A copy of a checkpoint's JSON with nested fields changed ("a.b": value; None deletes)."""
    copy = tmp_path / "changed"
    shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("*.safetensors"))
    values = json.loads((copy / file).read_text())
    for path, value in change.items():
        *parents, leaf = path.split(".")
        target = values
        for parent in parents:
            target = target[parent]
        target[leaf] = value
        if value is None:
            del target[leaf]
    (copy / file).write_text(json.dumps(values))
    return copy


@pytest.mark.parametrize(
    ("family", "change", "word"),
    [
        ("qwen3-vl", {"text_config.new_trick": 3}, "new_trick"),
        ("qwen3-vl", {"vision_config.new_trick": 3}, "new_trick"),
        ("qwen3-vl", {"new_trick": 3}, "new_trick"),
        ("qwen3-vl", {"text_config.hidden_act": "gelu"}, "hidden_act"),
        # Half of a head's pairs is turned by the row and half by the column: heads of 66 have no such half.
        (
            "qwen3-vl",
            {"vision_config.hidden_size": 132, "vision_config.num_heads": 2},
            "no head size divisible by 4",
        ),
        ("qwen3-vl", {"text_config.attention_bias": True}, "attention_bias"),
        ("qwen3-vl", {"text_config.rope_scaling.rope_type": "yarn"}, "yarn"),
        ("qwen3-vl", {"text_config.rope_scaling.mrope_interleaved": False}, "mrope_interleaved"),
        ("qwen3-vl", {"text_config.rope_scaling.mrope_section": [6, 5, 4]}, "mrope_section"),
        ("qwen3-vl", {"text_config.hidden_size": "wide"}, "hidden_size"),
        ("qwen3-vl", {"text_config.hidden_size": None}, "hidden_size"),
        ("qwen3-vl", {"text_config.num_key_value_heads": 3}, "3 key/value heads"),
        ("qwen3-vl", {"vision_config.out_hidden_size": 64}, "out_hidden_size"),
        ("qwen3-vl", {"vision_config.num_heads": 7}, "7 heads"),
        ("qwen3-vl", {"vision_config.deepstack_visual_indexes": [0, 1, 9]}, "block 9"),
        ("qwen3-vl", {"tie_word_embeddings": True, "text_config.tie_word_embeddings": False}, "tie_word_embeddings"),
        ("qwen3-vl", {"hidden_size": 77}, "hidden_size"),
        ("qwen3-vl", {"model_type": "llava"}, "llava"),
        ("qwen3-vl", {"auto_map": {"AutoModel": "code.Model"}}, "remote code"),
        ("qwen2.5-vl", {"text_config.use_sliding_window": True}, "use_sliding_window"),
        ("qwen2.5-vl", {"text_config.layer_types": ["full_attention", "sliding_attention", "full_attention"]}, "layer_types"),
        ("qwen2.5-vl", {"vision_config.spatial_patch_size": 16}, "spatial_patch_size"),
        ("qwen3.5", {"text_config.attn_output_gate": False}, "attn_output_gate"),
        ("qwen3.5", {"text_config.mamba_ssm_dtype": "bfloat16"}, "mamba_ssm_dtype"),
        ("qwen3.5", {"text_config.output_gate_type": "tanh"}, "output_gate_type"),
        ("qwen3.5", {"text_config.layer_types": ["linear_attention"] * 4}, "no layer with 'full_attention'"),
        ("qwen3.5", {"text_config.layer_types": ["full_attention"] * 3}, "4 layers"),
        ("qwen3.5", {"text_config.linear_num_value_heads": 3}, "3 value heads"),
        ("qwen3.5", {"vision_config.deepstack_visual_indexes": [0]}, "deepstack_visual_indexes"),
        ("qwen3.5", {"language_model_only": True}, "language_model_only"),
        ("qwen3.5-moe", {"text_config.shared_expert_intermediate_size": 96}, "shared_expert_intermediate_size"),
        ("qwen3.5-moe", {"text_config.mlp_only_layers": [1]}, "mlp_only_layers"),
        ("glm-4.1v", {"text_config.attention_bias": False}, "attention_bias"),
        ("glm-4.1v", {"vision_config.hidden_act": "gelu"}, "hidden_act"),
        ("qwen3-vl-moe", {"text_config.norm_topk_prob": False}, "norm_topk_prob"),
        ("qwen3-vl-moe", {"text_config.num_experts_per_tok": 13}, "num_experts_per_tok"),
        ("glm-4.6v", {"text_config.n_group": 2}, "n_group"),
        ("glm-4.6v", {"text_config.n_shared_experts": 2}, "n_shared_experts"),
        ("glm-4.6v", {"text_config.use_qk_norm": True}, "use_qk_norm"),
    ],
)
def test_fields_that_change_the_numbers_are_refused(
    tiny_checkpoints: dict[str, Path], tmp_path: Path, family: str, change: dict[str, Any], word: str
) -> None:
    folder = changed(tiny_checkpoints[family], tmp_path, "config.json", change)
    with pytest.raises(ConfigError, match=word) as caught:
        read_model_spec(folder)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"do_resize": False}, "do_resize"),
        ({"resample": 2}, "resample"),
        ({"rescale_factor": 0.5}, "rescale_factor"),
        ({"patch_size": 14}, "patch_size"),
        ({"image_std": [0.5, 0.5, 0.0]}, "image_std"),
        ({"sharpen": True}, "sharpen"),
        ({"size.longest_edge": -1}, "longest_edge"),
    ],
)
def test_processor_steps_that_are_not_ours_are_refused(
    tiny_checkpoints: dict[str, Path], tmp_path: Path, change: dict[str, Any], word: str
) -> None:
    folder = changed(tiny_checkpoints["qwen3-vl"], tmp_path, "preprocessor_config.json", change)
    with pytest.raises(ConfigError, match=word):
        read_processor_spec(folder, read_model_spec(folder), MediaConfig())


def test_flat_and_nested_configs_mean_the_same(tiny_checkpoints: dict[str, Path], tmp_path: Path) -> None:
    """Published Qwen2.5-VL configs keep the text fields at the top."""
    folder = tiny_checkpoints["qwen2.5-vl"]
    nested = json.loads((folder / "config.json").read_text())
    flat = {**nested.pop("text_config"), **nested}
    (tmp_path / "config.json").write_text(json.dumps(flat))
    assert read_model_spec(tmp_path) == read_model_spec(folder)


def test_pixel_limits_can_be_overridden(tiny_checkpoints: dict[str, Path]) -> None:
    folder = tiny_checkpoints["qwen3-vl"]
    spec = read_model_spec(folder)
    image = read_processor_spec(folder, spec, MediaConfig(min_pixels=1000, max_pixels=5000)).image
    assert (image.min_pixels, image.max_pixels) == (1000, 5000)
    with pytest.raises(ConfigError, match="5000"):
        read_processor_spec(folder, spec, MediaConfig(min_pixels=5000, max_pixels=1000))


@pytest.mark.parametrize(
    ("file", "ends", "sampling"),
    [
        ({"eos_token_id": [1, 2], "do_sample": True, "temperature": 0.7, "top_p": 0.8, "top_k": 20}, (1, 2),
         {"temperature": 0.7, "top_p": 0.8, "top_k": 20.0}),
        ({"eos_token_id": 5, "temperature": 0.7}, (5,), {"temperature": 0.0}),  # no do_sample: greedy
        ({"do_sample": False, "repetition_penalty": 1.05, "max_new_tokens": 9}, None,
         {"temperature": 0.0, "repetition_penalty": 1.05, "max_tokens": 9.0}),
    ],
)  # fmt: skip
def test_generation_defaults(
    tiny_checkpoints: dict[str, Path],
    tmp_path: Path,
    file: dict[str, Any],
    ends: tuple[int, ...] | None,
    sampling: dict[str, float],
) -> None:
    spec = read_model_spec(tiny_checkpoints["qwen3-vl"])
    (tmp_path / "generation_config.json").write_text(json.dumps(file))
    defaults = read_generation_defaults(tmp_path, spec)
    assert defaults.eos_token_ids == (ends or spec.eos_token_ids)
    assert defaults.sampling == sampling
