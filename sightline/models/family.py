"""What a model family is, as one object: how its files are read, how its weights are named, what `model new` writes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from sightline.models.fields import Fields
from sightline.models.hf_config import finish_processor
from sightline.models.weight_table import WeightTable
from sightline.prompt.byte_tokenizer import SpecialTokens
from sightline.spec import ExpertLayout, ModelSpec, ProcessorSpec

if TYPE_CHECKING:
    from sightline.models.decoder import Modules
    from sightline.models.sharding import ShardPart
    from sightline.models.tower import Tower


@dataclass(frozen=True)
class ProcessorFiles:
    """What a checkpoint says of images and videos."""

    image: Fields  # preprocessor_config.json
    video: Fields  # video_preprocessor_config.json; without any field where a checkpoint has no such file
    config: Fields  # config.json, of which everything was read already

    def done(self, resample: int = 3) -> None:
        """The family has read what it knows; what is left over must be harmless. `resample`: Pillow's number of the filter that
        its pictures are resized with; 3 is bicubic."""
        finish_processor(self.image, resample)
        finish_processor(self.video, resample)


def patch_tower(spec: ModelSpec) -> "Tower":
    """The tower that most families share."""
    from sightline.models.patch_tower import PatchTower

    return PatchTower(spec.patch_tower)


@dataclass(frozen=True)
class Family:
    name: str  # as in `sightline model new --family`
    model_type: str  # as in config.json
    architecture: str  # the class name that transformers looks for in config.json
    read_spec: Callable[[Fields], ModelSpec]
    read_processor: Callable[[ProcessorFiles, ModelSpec], ProcessorSpec]
    weight_table: Callable[[ModelSpec], WeightTable]
    # What `model new` writes
    sizes: Mapping[str, Mapping[str, Any]]  # config.json by size name, special token ids left out
    preprocessor: Mapping[str, Any]  # preprocessor_config.json, or as `preprocessor_file` says
    video_preprocessor: Mapping[str, Any] | None
    token_fields: Mapping[str, str]  # config.json's token id fields and the special tokens they name
    text_token_fields: Mapping[str, str | Sequence[str]]  # those of its text section, pad_token_id among them
    eos_tokens: tuple[str, ...]
    special_tokens: SpecialTokens
    chat_template: Path
    # Where families share a model_type: as in the files of this one's processor. None takes what no other family names.
    processor_class: str | None = None
    text_section: str = "text_config"  # what config.json calls the language model's fields
    preprocessor_file: str = "preprocessor_config.json"
    # Token ids that published config.jsons do not have: fields that read_spec takes all the same, and the tokenizer's names.
    tokenizer_fields: Mapping[str, str] = field(default_factory=dict)
    added_tokens: tuple[str, ...] = ()  # special tokens that a tokenizer is given if it lacks them, in the order of their ids
    # Whether its published checkpoints have no chat template: this family's is then taken.
    lends_template: bool = False
    # How it writes boxes and points: in thousandths of the image's sides, or in pixels of the image as the tower sees it.
    coordinates: Literal["thousandths", "pixels"] = "thousandths"
    # How its checkpoints may store experts, the published way first. Empty: it has none.
    expert_layouts: tuple[ExpertLayout, ...] = ()
    # Modules of its own for mixers and MLPs, by the type of their specs. Called where a model is made: it may import torch.
    modules: "Callable[[], Modules]" = dict
    # How ranks split those, by the type of their specs. Of parts that it does not name, a model runs on one GPU alone.
    shards: "Mapping[type, ShardPart]" = field(default_factory=dict)
    # Its checkpoints are published with code of their own, which config.json's 'auto_map' names and which may be the only place
    # that says how pictures are processed: no preprocessor_config.json. It is never run; the family takes its place.
    replaces_code: bool = False
    # preprocessor_config.json of sizes that have another one.
    preprocessor_of_size: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    # Its tower. Called where a model is made: it may import torch.
    tower: "Callable[[ModelSpec], Tower]" = patch_tower
