"""Everything a checkpoint says but its weights: what is needed to turn messages into requests. No torch."""

from dataclasses import dataclass
from pathlib import Path

from sightline.config import MediaConfig, ModelConfig
from sightline.errors import ConfigError
from sightline.models.family import Family
from sightline.models.generation import GenerationDefaults, read_generation_defaults
from sightline.models.locate import locate_model
from sightline.models.registry import add_family_modules, family_named, read_model_spec, read_processor_spec
from sightline.prompt.builder import PromptBuilder
from sightline.prompt.template import ChatTemplate
from sightline.prompt.tokenizer import Tokenizer
from sightline.spec import ModelSpec, ProcessorSpec


@dataclass(frozen=True)
class ModelFiles:
    folder: Path
    name: str  # by which it was asked for
    spec: ModelSpec
    processor: ProcessorSpec
    tokenizer: Tokenizer
    template: ChatTemplate
    defaults: GenerationDefaults
    max_model_len: int  # tokens of a prompt and its answer

    def prompt_builder(self, limits: MediaConfig) -> PromptBuilder:
        return PromptBuilder(
            template=self.template,
            tokenizer=self.tokenizer,
            spec=self.spec,
            processor=self.processor,
            limits=limits,
            max_model_len=self.max_model_len,
            model=self.name,
        )


def read_model_files(model: ModelConfig, media: MediaConfig) -> ModelFiles:
    """Finds the checkpoint, downloading it if it is a Hub id, and reads all of it that is not weights."""
    return read_files_of(find_folder(model), model, media)


def find_folder(model: ModelConfig) -> Path:
    """Where the checkpoint is, after downloading it if need be."""
    return locate_model(model.model, model.revision, weights=model.load_format == "safetensors")


def read_files_of(folder: Path, model: ModelConfig, media: MediaConfig) -> ModelFiles:
    add_family_modules(model.family_module)
    spec = read_model_spec(folder)
    family = family_named(spec.family)
    return ModelFiles(
        folder=folder,
        name=model.model or folder.name,
        spec=spec,
        processor=read_processor_spec(folder, spec, media),
        tokenizer=Tokenizer.from_folder(folder, family.added_tokens),
        template=_read_template(folder, model.chat_template, family),
        defaults=read_generation_defaults(folder, spec),
        max_model_len=_choose_length(model.max_model_len, spec.text.max_position),
    )


def _read_template(folder: Path, file: str | None, family: Family) -> ChatTemplate:
    if file is None and family.lends_template and not ChatTemplate.is_in(folder):
        return ChatTemplate.from_file(family.chat_template, folder)
    if file is None:
        return ChatTemplate.from_folder(folder)
    if not Path(file).is_file():
        raise ConfigError(f"chat_template is {file!r}, but there is no such file.")
    return ChatTemplate.from_file(Path(file), folder)


def _choose_length(wanted: int | None, made_for: int) -> int:
    if wanted is None:
        return made_for
    if not 2 <= wanted <= made_for:
        raise ConfigError(f"max_model_len is {wanted}, but must be between 2 and the {made_for} the model was made for.")
    return wanted
