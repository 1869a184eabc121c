"""The families Sightline runs, and the way from a checkpoint folder to specs."""

import dataclasses
from pathlib import Path

from sightline.config import MediaConfig
from sightline.errors import ConfigError
from sightline.json_files import read_json
from sightline.models import glm4v, qwen2_5_vl, qwen3_vl
from sightline.models.family import Family
from sightline.models.fields import Fields
from sightline.models.quantization_config import read_quantization
from sightline.spec import ModelSpec, ProcessorSpec

FAMILIES: dict[str, Family] = {module.FAMILY.name: module.FAMILY for module in (qwen3_vl, qwen2_5_vl, glm4v)}
_BY_MODEL_TYPE = {family.model_type: family for family in FAMILIES.values()}


def read_model_spec(folder: Path) -> ModelSpec:
    """config.json of a checkpoint folder, read once."""
    config = Fields(read_json(folder / "config.json"), "config.json")
    model_type = config.take("model_type")
    if "auto_map" in config:
        raise ConfigError("config.json asks for code from the checkpoint ('auto_map'); remote code is refused.")
    if model_type not in _BY_MODEL_TYPE:
        known = ", ".join(sorted(_BY_MODEL_TYPE))
        raise ConfigError(f"config.json: 'model_type' is {model_type!r}, but only {known} are supported.")
    fp8 = read_quantization(config.section("quantization_config")) if "quantization_config" in config else None
    return dataclasses.replace(_BY_MODEL_TYPE[model_type].read_spec(config), fp8=fp8)


def read_processor_spec(folder: Path, spec: ModelSpec, media: MediaConfig) -> ProcessorSpec:
    """preprocessor_config.json and video_preprocessor_config.json, or the two halves of a processor_config.json."""
    image_path, video_path = folder / "preprocessor_config.json", folder / "video_preprocessor_config.json"
    joint_path = folder / "processor_config.json"
    image = video = None
    if joint_path.exists():
        joint = Fields(read_json(joint_path), "processor_config.json")
        image = joint.section("image_processor") if "image_processor" in joint else None
        video = joint.section("video_processor") if "video_processor" in joint else None
    if image is None:
        image = Fields(read_json(image_path), image_path.name)
    if video is None and video_path.exists():
        video = Fields(read_json(video_path), video_path.name)
    processor = FAMILIES[spec.family].read_processor(image, video, spec)
    least = media.min_pixels if media.min_pixels is not None else processor.image.min_pixels
    most = media.max_pixels if media.max_pixels is not None else processor.image.max_pixels
    if not 0 < least <= most:
        raise ConfigError(f"The smallest image area, {least} pixels, must be above 0 and at most the largest, {most}.")
    return dataclasses.replace(processor, image=dataclasses.replace(processor.image, min_pixels=least, max_pixels=most))
