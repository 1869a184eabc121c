"""What a model family is, as one object: how its config is read, how its weights are named, what `model new` writes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sightline.models.fields import Fields
from sightline.models.weight_table import WeightTable
from sightline.spec import ModelSpec, ProcessorSpec


@dataclass(frozen=True)
class Family:
    name: str  # as in `sightline model new --family`
    model_type: str  # as in config.json
    architecture: str  # the class name that transformers looks for in config.json
    read_spec: Callable[[Fields], ModelSpec]
    # from preprocessor_config.json and video_preprocessor_config.json (None where a checkpoint has none)
    read_processor: Callable[[Fields, Fields | None, ModelSpec], ProcessorSpec]
    weight_table: Callable[[ModelSpec], WeightTable]
    sizes: Mapping[str, Mapping[str, Any]]  # config.json by size name, special token ids left out
    preprocessor: Mapping[str, Any]  # preprocessor_config.json
    video_preprocessor: Mapping[str, Any] | None
    token_fields: Mapping[str, str]  # config.json's token id fields and the special tokens they name
    eos_tokens: tuple[str, ...]
