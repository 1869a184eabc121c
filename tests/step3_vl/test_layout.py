"""What Step3-VL is shown of a picture, in published sizes: which windows, of which pixels, how they stand in a prompt."""

import dataclasses
import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from assets import asset
from parity.conversations import picture
from sightline.config import MediaConfig
from sightline.encoder.decoding.pixels import is_shrunk, result_shape
from sightline.encoder.tiles import canvases, cut_tiles
from sightline.errors import ConfigError, MediaError
from sightline.media.item import item_of
from sightline.models.create import create_checkpoint
from sightline.models.families.step3_vl.processor import StepProcessor, read_processor
from sightline.models.family import ProcessorFiles
from sightline.models.fields import Fields
from sightline.models.registry import read_model_spec, read_processor_spec
from sightline.spec import ModelSpec
from sightline.types import ImageHeader, MediaItem, MediaRef
from step3_vl.oracle import Step3p7ImageProcessor, normalised, squared, views

PUBLISHED = {"size": {"height": 728, "width": 728}, "patch_size": 504, "max_image_size": 3024}
JUDGE = Step3p7ImageProcessor(**PUBLISHED)


def spec_of(folder: Path, size: str = "10b") -> ModelSpec:
    create_checkpoint(folder, "step3-vl", size, weights=False)
    return read_model_spec(folder)


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> ModelSpec:
    return spec_of(tmp_path_factory.mktemp("step3") / "10b")


@pytest.fixture(scope="module")
def processor(spec: ModelSpec) -> StepProcessor:
    return processor_of(spec, PUBLISHED)


def processor_of(spec: ModelSpec, image: dict[str, Any]) -> StepProcessor:
    return read_processor(ProcessorFiles(Fields(image, "preprocessor_config.json"), Fields({}, ""), Fields({}, "")), spec)


def item(processor: StepProcessor, width: int, height: int) -> MediaItem:
    return item_of(MediaRef("image", b"", b"", ImageHeader("PNG", width, height, 1), "picture"), processor)


def expected_text(width: int, height: int) -> str:
    """From what transformers plans, a window at a time."""
    across, down = JUDGE._plan_patches(width, height, 728, 504)[3:5]
    one = "<patch_start><im_patch><patch_end>"
    return "<patch_newline>".join([one * across] * down) + "<im_start><im_patch><im_end>"


SIZES = [
    *((728, 728), (728, 486), (728, 485), (729, 729), (727, 400), (504, 504), (1, 1), (3, 1), (1008, 504), (604, 1000)),
    *((605, 1000), (1109, 1000), (3024, 3024), (3025, 3024), (4000, 3000), (8000, 50), (100, 31), (31, 125), (124, 31)),
    *((800, 400), (2200, 500), (2016, 504), (2017, 504), (900, 40), (8192, 31), (640, 480), (1920, 1080), (1080, 2400)),
]


def check(processor: StepProcessor, width: int, height: int) -> None:
    found = item(processor, width, height)
    form = processor.prompt_form(found)
    assert form.text == expected_text(width, height)
    windows = JUDGE.get_number_of_image_patches(height, width)
    assert form.runs == (*[81] * windows, 169) and found.rows == sum(form.runs)
    assert found.grids == (*[(windows, 36, 36)] * (windows > 0), (1, 52, 52))
    assert [view.tiles for view in found.views] == [grid[0] for grid in found.grids]
    assert found.patches <= processor.most_patches_per_item()


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_windows_and_prompts_are_transformers(processor: StepProcessor, size: tuple[int, int]) -> None:
    """Red if a threshold is off by one: 728 pixels, aspects of 1.5 and 4, a fifth of a window, lines of 32 pixels. At a longer
    side of exactly 728 pixels there are no windows for being large, as in the model's own code."""
    check(processor, *size)


@given(st.integers(1, 5000), st.integers(1, 5000))
def test_windows_of_any_size(processor: StepProcessor, width: int, height: int) -> None:
    line = min(width, height) < 32 and max(width, height) > 4 * min(width, height)
    if max(width, height) > 150 * min(width, height) and not line:
        return  # near the limit
    check(processor, width, height)


def slow_views(found: MediaItem, image: Image.Image, processor: StepProcessor) -> torch.Tensor:
    """Tiles of all views as the package cuts them, of equal sizes or not, flat."""
    frames = torch.from_numpy(np.asarray(image).copy())[None]
    made = zip(canvases(frames, found.views, processor.image.mean), found.views, strict=True)
    return torch.cat([cut_tiles(canvas, view).flatten() for canvas, view in made])


@pytest.mark.parametrize(
    "size", [(800, 400), (400, 800), (700, 400), (20, 700), (900, 25), (1700, 90), (760, 730), (3100, 800), (90, 70)], ids=str
)
def test_pixels_are_pillows(processor: StepProcessor, size: tuple[int, int]) -> None:
    """Red if the picture is padded, shrunk, cut or resized in another order or with another filter, or padding is not black."""
    image = picture(*size, 6)
    found = slow_views(item(processor, *size), image, processor)
    made = views(image, PUBLISHED)
    assert torch.equal(found, torch.cat([torch.from_numpy(np.asarray(view).copy()).flatten() for view in made]))


@pytest.mark.parametrize("size", [(700, 400), (760, 730), (90, 70)], ids=str)
def test_what_rounding_to_bytes_costs(processor: StepProcessor, size: tuple[int, int]) -> None:
    """The model's own code resizes for the last time after it has normalised, in floating point. Red if a pixel differs from
    that by more than a step of 255, which is what both passes round to."""
    image = picture(*size, 7)
    numbers = {**PUBLISHED, "image_mean": processor.image.mean, "image_std": processor.image.std}
    whole = normalised(squared(image), numbers)
    exact = torch.nn.functional.interpolate(whole[None], (728, 728), mode="bilinear", antialias=True)[0]
    rounded = normalised(views(image, numbers)[-1], numbers)
    steps = (rounded - exact).abs() * 255 * torch.tensor(processor.image.std)[:, None, None]
    assert 0 < steps.max() <= 1.01 and steps.mean() < 0.5


def test_a_helper_process_leaves_the_pixels_alone(processor: StepProcessor) -> None:
    """Red if it resizes a picture of one view by its own filter."""
    found = item(processor, 1000, 1000)
    single = item(processor, 700, 690)
    assert len(single.views) == 1 and not is_shrunk(single) and result_shape(single) == (1, 690, 700, 3)
    assert len(found.views) == 2 and result_shape(found) == (1, 1000, 1000, 3)


@pytest.mark.parametrize(
    ("size", "words"),
    [
        ((8000, 39), "aspect ratio may be 200"),
        ((60_000, 250), "aspect ratio may be 200"),
        ((8193, 31), "lines may have 8192 pixels"),
        ((1, 50_000), "lines may have 8192 pixels"),
    ],
)
def test_pictures_that_are_too_narrow_are_refused(processor: StepProcessor, size: tuple[int, int], words: str) -> None:
    """Red if a picture of a few bytes becomes a square of gigabytes, thousands of windows or a division by zero."""
    with pytest.raises(MediaError, match=words):
        item(processor, *size)


def test_most_patches_are_of_the_narrowest(processor: StepProcessor) -> None:
    narrow = item(processor, 20_000, 100)
    assert narrow.grids[0][0] == 202 and narrow.patches == processor.most_patches_per_item()
    assert processor.most_patches_at_once() == 52 * 52


@pytest.mark.parametrize(("least", "most"), [(1, 500_000), (1, 10_000), (3_000_000, 9_144_576)])
@given(width=st.integers(30, 4000), height=st.integers(30, 4000))
def test_other_areas(processor: StepProcessor, least: int, most: int, width: int, height: int) -> None:
    """--min-pixels and --max-pixels are areas of the picture that windows are cut from."""
    limited = dataclasses.replace(processor, image=dataclasses.replace(processor.image, min_pixels=least, max_pixels=most))
    if max(width, height) > 50 * min(width, height) or (
        min(width, height) < 32 and max(width, height) > 4 * min(width, height)
    ):
        return
    _, (high, wide) = limited._picture(height, width)
    assert high * wide <= most and max(high, wide) <= 3024
    enlarged = max(high, wide) < 3000 and least > 1
    assert high * wide >= 0.99 * least or not enlarged
    assert abs(math.log(high / wide) - math.log(height / width)) < 0.2
    assert item(limited, width, height).rows <= limited.most_patches_per_item() // 16


def test_keys_differ_where_rows_do(processor: StepProcessor) -> None:
    """Red if embeddings of one setting are taken for those of another."""
    image = dataclasses.replace(processor.image, max_pixels=500_000)
    others = [processor, dataclasses.replace(processor, image=image), dataclasses.replace(processor, window=448)]
    keys = [item(one, 1000, 900).key for one in others]
    assert len(set(keys)) == 3
    assert all(one != another for one, another in itertools.combinations(keys, 2))


# ---- Files


def test_files_that_say_nothing_mean_the_published_numbers(tmp_path: Path) -> None:
    """Checkpoints that bring their own code may have no preprocessor_config.json, and name that code in config.json. Red if
    they are refused, if the code is run, or if other numbers are assumed."""
    folder = tmp_path / "model"
    spec = spec_of(folder)
    written = read_processor_spec(folder, spec, MediaConfig())
    (folder / "preprocessor_config.json").unlink()
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "auto_map": {"AutoConfig": "configuration_step_vl.Config"}}))
    (folder / "processor_config.json").write_text(
        json.dumps({"auto_map": {"AutoProcessor": "processing_step3.Step3VLProcessor"}, "processor_class": "Step3VLProcessor"})
    )
    assert read_model_spec(folder) == spec
    assert read_processor_spec(folder, spec, MediaConfig()) == written


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("size", {"height": 728, "width": 700}, "'width' is 700"),
        ("patch_size", 500, "'patch_size' 500"),
        ("max_image_size", 700, "'max_image_size' 700"),
        ("resample", 3, "'resample' is 3"),
        ("vision_patch_size", 16, "'vision_patch_size' is 16"),
        ("downsampler_stride", 2, "'downsampler_stride' is 2"),
        ("image_std", [0.5, 0.5, 0], "'image_std'"),
        ("crop", True, "'crop'"),
    ],
)
def test_other_numbers_are_refused(spec: ModelSpec, field: str, value: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        processor_of(spec, {**PUBLISHED, field: value})


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("vision_config.use_cls_token", True, "'use_cls_token' is True"),
        ("vision_config.ues_cls_token", True, "'ues_cls_token' is True"),
        ("vision_config.use_ln_post", True, "'use_ln_post' is True"),
        ("vision_config.use_rope2d", False, "'use_rope2d' is False"),
        ("vision_config.hidden_act", "gelu", "'hidden_act' is 'gelu'"),
        ("vision_config.image_size", 700, "'image_size' is 700"),
        ("vision_config.heads", 7, "no head size divisible by 4"),
        ("vision_config.theta", 1.0, "'theta'"),
        ("vision_config.pool_type", "attn", "'pool_type' is 'attn'"),
        ("understand_projector_stride", 4, "'understand_projector_stride' is 4"),
        ("text_config.rope_scaling", {"rope_type": "yarn", "factor": 4.0}, "'rope_type' is 'yarn'"),
        ("text_config.rope_scaling", {"mrope_section": [1, 2, 3]}, "'mrope_section'"),
        ("text_config.attention_bias", True, "'attention_bias' is True"),
    ],
)
def test_other_configs_are_refused(tmp_path: Path, path: str, value: Any, words: str) -> None:
    create_checkpoint(tmp_path / "model", "step3-vl", "tiny", weights=False)
    file = tmp_path / "model" / "config.json"
    config = json.loads(file.read_text())
    *parents, leaf = path.split(".")
    target = config
    for parent in parents:
        target = target[parent]
    target[leaf] = value
    file.write_text(json.dumps(config))
    with pytest.raises(ConfigError, match=words):
        read_model_spec(tmp_path / "model")


def test_what_published_configs_of_this_tower_say_besides(tmp_path: Path) -> None:
    """Fields of a sibling's config.json, which has the same tower, and rotary positions under their newer name. Red if harmless
    ones are refused, or the newer name is not read."""
    spec = spec_of(tmp_path / "model", "tiny")
    file = tmp_path / "model" / "config.json"
    config = json.loads(file.read_text())
    config |= {"image_token_len": 169, "patch_token_len": 81, "hidden_size": 128}
    config["vision_config"] |= {"output_dim": None, "pool_type": "none", "ls_init_value": None}
    file.write_text(json.dumps(config))
    assert read_model_spec(tmp_path / "model") == spec
    del config["text_config"]["rope_theta"]
    config["text_config"]["rope_parameters"] = {"rope_type": "default", "rope_theta": 123.0}
    file.write_text(json.dumps(config))
    rope = read_model_spec(tmp_path / "model").text.attention.rope
    assert (rope.theta, rope.sections, rope.rotary_dim, rope.pairing) == (123.0, (32, 0, 0), 64, "halves")


def test_the_constants_of_public_processors(processor: StepProcessor) -> None:
    said = json.loads((asset("configs") / "Step3-VL-10B" / "processor_constants.json").read_text())
    assert (processor.view, processor.window) == (said["image_size"], said["patch_size"])
    assert (list(processor.image.mean), list(processor.image.std)) == (said["image_mean"], said["image_std"])
    form = processor.prompt_form(item(processor, 1000, 900))
    assert set(form.runs) == {said["num_patch_feature_size"], said["num_image_feature_size"]}
    assert processor.placeholders("image") == (said["image_token"],)
