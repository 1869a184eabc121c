"""What is made of a header and of messages: canvases as Pillow and the model's makers choose them, the prompt's text, files."""

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageOps

from assets import asset
from deepseek_vl2.oracle import best_canvas, pad, parts_of
from engine.harness import loaded
from sightline.config import MediaConfig, ModelConfig
from sightline.encoder.tiles import canvases, cut_tiles
from sightline.errors import ConfigError, PromptError
from sightline.models.create import create_checkpoint
from sightline.models.families.deepseek_vl2.processor import DeepseekVL2Processor
from sightline.models.families.deepseek_vl2.sizes import BOS, EOS, PROCESSOR
from sightline.models.families.deepseek_vl2.spec import LatentAttentionSpec
from sightline.models.files import read_model_files
from sightline.models.load import empty_model
from sightline.models.registry import family_named, read_model_spec, read_processor_spec
from sightline.prompt.byte_tokenizer import write_byte_tokenizer
from sightline.spec import AttentionSpec, ExpertsSpec, GatedMLPSpec, PatchSpec
from sightline.types import ImageHeader

CANDIDATES = PROCESSOR["candidate_resolutions"]
HALF = (0.5, 0.5, 0.5)
PUBLISHED = DeepseekVL2Processor(
    image=PatchSpec(384**2, 9 * 384**2, 14, temporal_patch_size=1, merge_size=1, mean=HALF, std=HALF),
    video=None,
    tile=384,
    rows_side=14,
    canvases=tuple((wide, high) for wide, high in CANDIDATES),
)


# ---- Canvases


@given(st.integers(1, 5000), st.integers(1, 5000), st.integers(1, 4))
def test_canvases_of_any_size(width: int, height: int, images: int) -> None:
    """Red if another canvas is chosen or counted, or a picture is rounded to another size or place than Pillow does."""
    if not 1 / 300 < width / height < 300:
        return
    layout = PUBLISHED.with_images(images).layout(ImageHeader("PNG", width, height, 1))
    wide, high = best_canvas(width, height, CANDIDATES) if images <= 2 else (384, 384)
    across, down = wide // 384, high // 384
    assert layout.views[-1].canvas == (high, wide)
    assert layout.rows == 14 * 15 + 1 + 14 * down * (14 * across + 1)
    assert layout.grids == ((1, 27, 27), (across * down, 27, 27))[: len(layout.views)]
    assert (len(layout.views) == 1) == (across * down == 1)
    for view in layout.views:
        assert view.resized == ImageOps.contain(Image.new("1", (width, height)), view.canvas[::-1]).size[::-1]


@pytest.mark.parametrize("size", [(601, 300), (300, 601), (385, 384), (77, 45), (1151, 383), (900, 901)])
def test_tiles_are_pillows(size: tuple[int, int]) -> None:
    """Bit for bit. Red if the grey around a picture, or where it lies, is another."""
    pixels = np.random.default_rng(size[0]).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    layout = PUBLISHED.layout(ImageHeader("PNG", *size, 1))
    made = canvases(torch.from_numpy(pixels)[None], layout.views, HALF)
    for view, found in zip(layout.views, made, strict=True):
        tiles = cut_tiles(found, view)[0]
        canvas = pad(Image.fromarray(pixels), view.canvas[::-1])
        across = view.canvas[1] // 384
        for number, tile in enumerate(tiles):
            left, top = number % across * 384, number // across * 384
            assert np.array_equal(np.asarray(canvas.crop((left, top, left + 384, top + 384))), tile.numpy())


def test_fewer_pixels_are_fewer_tiles() -> None:
    """max_pixels bounds the canvas. Red if it does not, or the memory plan still counts the tiles that are gone."""
    fewer = dataclasses.replace(PUBLISHED, image=dataclasses.replace(PUBLISHED.image, max_pixels=2 * 384**2))
    layout = fewer.layout(ImageHeader("PNG", 1400, 300, 1))
    assert layout.views[1].canvas == (384, 768) and fewer.most_patches_per_item() == 3 * 27**2
    assert PUBLISHED.most_patches_per_item() == 10 * 27**2 and PUBLISHED.most_patches_at_once() == 27**2


# ---- Prompts


def test_the_template_writes_what_the_processor_reads(checkpoints: dict[str, Path]) -> None:
    """Red if an end token, a line or a space is another; texts are those of the makers' processor, joined."""
    llm = loaded(checkpoints["tiny"])
    image = Image.new("RGB", (40, 30))
    turns: list[dict[str, Any]] = [
        {"role": "system", "content": " Be brief. "},
        {"role": "user", "content": [{"type": "image", "image": image}, {"type": "text", "text": "What? \n"}]},
        {"role": "assistant", "content": "A picture.\n"},
        {"role": "user", "content": [{"type": "text", "text": " And "}, {"type": "image", "image": image}]},
    ]
    for messages in (turns, turns[1:], turns[1:2], [{"role": "user", "content": "Hello"}]):
        expected = "".join(part if isinstance(part, str) else "<image>" for part in parts_of(messages))
        assert llm.prompts.render(messages)[0] == expected
    done, _ = llm.prompts.render(turns[:3], chat_template_kwargs={"add_generation_prompt": False})
    assert done.endswith("<|User|>: <image>\nWhat?\n\n<|Assistant|>:A picture.<｜end▁of▁sentence｜>")
    with pytest.raises(PromptError, match="A system message must be the first one"):
        llm.prompts.render([*turns[1:], turns[0]])


# ---- Files


def published(folder: Path, template: bool = False) -> Path:
    """The real config and processor files, with a tokenizer of our own: its added tokens have the published ids."""
    create_checkpoint(folder, "deepseek-vl2", "3b", weights=False)
    for name in ("preprocessor_config.json", "generation_config.json", "chat_template.jinja"):
        (folder / name).unlink(missing_ok=True)
    for name in ("config.json", "processor_config.json"):
        shutil.copy(asset("configs") / "deepseek-vl2-tiny" / name, folder / name)
    return folder


def test_the_published_tiny(tmp_path: Path) -> None:
    """Parameters worked out by hand from the sizes; files as published, without a template, generation or preprocessor file."""
    folder = published(tmp_path / "model")
    files = read_model_files(ModelConfig(model=str(folder)), MediaConfig())
    spec, text = files.spec, files.spec.text
    assert spec.tokens.image == 128815 and spec.eos_token_ids == (1,) and files.defaults.eos_token_ids == (1,)
    assert files.processor == PUBLISHED and files.max_model_len == 4096 and spec.dtype == "bfloat16"
    assert files.template.source == family_named("deepseek-vl2").chat_template.read_text(encoding="utf-8")
    attention, mlps = text.attention, [layer.mlp for layer in text.layers]
    assert (attention.num_heads, attention.num_kv_heads, attention.head_dim) == (10, 10, 128)
    experts = ExpertsSpec(64, 6, 896, shared_expert="plain", shared_count=2, normalised=False, float32_softmax=True)
    assert mlps == [GatedMLPSpec(6848)] + [experts] * 11
    layer = 4 * 1280**2 + 2 * 1280
    decoder = 2 * 129280 * 1280 + 1280 + 12 * layer + 3 * 1280 * 6848 + 11 * (64 * 1280 + 66 * 3 * 1280 * 896)
    block = 4 * 1152 * 1153 + 4 * 1152 + 4304 * 1153 + 1152 * 4305
    tower = 1152 * (588 + 1 + 729 + 2) + 27 * block + 4608 * 1280 + 1280 + 1280 * 1281 + 2 * 1280
    model = empty_model(spec)
    counts = [sum(p.numel() for p in part.parameters()) for part in (model.text, model.vision)]
    assert counts == [decoder, tower]
    assert set(family_named("deepseek-vl2").weight_table(spec)) == set(dict(model.named_parameters()))


@pytest.mark.parametrize(("size", "parameters"), [("3b", 3.37), ("16b", 16.1), ("27b", 27.5)])
def test_sizes(tmp_path: Path, size: str, parameters: float) -> None:
    """Billions of published checkpoints. Red if a width or a count is another."""
    create_checkpoint(tmp_path / "model", "deepseek-vl2", size, weights=False)
    spec = read_model_spec(tmp_path / "model")
    total = sum(p.numel() for p in empty_model(spec).parameters())
    assert abs(total / 1e9 - parameters) < 0.05
    mixer = spec.text.layers[0].mixer
    assert isinstance(mixer, AttentionSpec if size == "3b" else LatentAttentionSpec)
    # bytes of a token: two of 10 heads of 128, or 512 + 64 numbers whatever the heads
    each = spec.text.token_bytes(2) / spec.text.num_layers
    assert each == (2 * 10 * 128 * 2 if size == "3b" else (512 + 64) * 2)


def test_tokens_that_the_tokenizer_lacks_are_added(checkpoints: dict[str, Path], tmp_path: Path) -> None:
    """Behind those that it has, as the makers' processor adds them. Red if prompts and the model's spec get other ids, or one
    that is there gets another."""
    folder = tmp_path / "model"
    shutil.copytree(checkpoints["tiny"], folder, ignore=shutil.ignore_patterns("*.safetensors", "tokenizer*"))
    write_byte_tokenizer(folder, {BOS: 256, EOS: 257, "<|User|>": 258}, EOS)
    files = read_model_files(ModelConfig(model=str(folder)), MediaConfig())
    names = ("<｜▁pad▁｜>", "<image>", "<|ref|>", "<|/ref|>", "<|det|>", "<|/det|>", "<|grounding|>", "<|Assistant|>")
    assert [files.tokenizer.id_of(name) for name in ("<|User|>", *names)] == list(range(258, 267))
    image = Image.new("RGB", (40, 30))
    content = [{"type": "image", "image": image}, {"type": "text", "text": "a"}]
    request = files.prompt_builder(MediaConfig()).chat([{"role": "user", "content": content}])
    assert files.spec.tokens.image == 260 and request.token_ids.tolist() == (
        [256, 258, *b": ", *[260] * 25, *b"\na\n\n", 266, *b":"]
    )


def test_new_models_are_the_published_ones(tmp_path: Path) -> None:
    create_checkpoint(tmp_path / "ours", "deepseek-vl2", "3b", weights=False)
    folders = tmp_path / "ours", published(tmp_path / "theirs")
    ours, theirs = (read_model_spec(folder) for folder in folders)
    assert (ours.text, ours.vision, ours.tokens) == (theirs.text, theirs.vision, theirs.tokens)
    first, second = (read_processor_spec(folder, ours, MediaConfig()) for folder in folders)
    assert first == second


@pytest.mark.parametrize(
    ("file", "section", "field", "value", "word"),
    [
        ("config.json", "language_config", "topk_method", "noaux_tc", "topk_method"),
        ("config.json", "language_config", "scoring_func", "tanh", "scoring_func"),
        ("config.json", "language_config", "rope_scaling", {"type": "yarn", "factor": 40}, "rope_scaling"),
        ("config.json", "language_config", "q_lora_rank", 1536, "q_lora_rank"),
        ("config.json", "language_config", "num_experts_per_tok", 13, "num_experts_per_tok"),
        ("config.json", "language_config", "new_trick", 3, "new_trick"),
        ("config.json", "vision_config", "model_name", "deeplip_b_l", "only SigLIP towers"),
        ("config.json", "vision_config", "class_token", True, "class_token"),
        ("config.json", "vision_config", "heads", 5, "multiple of 'heads'"),
        ("config.json", "projector_config", "depth", 3, "depth"),
        ("config.json", "projector_config", "input_dim", 1152, "input_dim"),
        ("config.json", "projector_config", "n_embed", 64, "contradicts itself"),
        ("config.json", None, "tile_tag", "1D", "tile_tag"),
        ("config.json", None, "global_view_pos", "tail", "global_view_pos"),
        ("processor_config.json", None, "candidate_resolutions", [[384, 384], [384, 400]], "candidate_resolutions"),
        ("processor_config.json", None, "candidate_resolutions", [[768, 384]], "candidate_resolutions"),
        ("processor_config.json", None, "downsample_ratio", 3, "downsample_ratio"),
        ("processor_config.json", None, "normalize", False, "normalize"),
        ("processor_config.json", None, "sft_format", "plain", "sft_format"),
    ],
)
def test_what_is_not_computed_is_refused_by_name(
    checkpoints: dict[str, Path], tmp_path: Path, file: str, section: str | None, field: str, value: Any, word: str
) -> None:
    folder = tmp_path / "changed"
    shutil.copytree(checkpoints["tiny-mla"], folder, ignore=shutil.ignore_patterns("*.safetensors"))
    values = json.loads((folder / file).read_text(encoding="utf-8"))
    (values if section is None else values[section])[field] = value
    (folder / file).write_text(json.dumps(values), encoding="utf-8")
    with pytest.raises(ConfigError, match=word):
        read_processor_spec(folder, read_model_spec(folder), MediaConfig())
