"""The families Sightline runs, and the way from a checkpoint folder to specs.

They come from modules that have a FAMILY, or FAMILIES: the package's own, those that installed packages register under the
entry-point group `sightline.families`, and those that `--family-module` names.
"""

import dataclasses
import functools
import importlib
import importlib.metadata
import importlib.util
import pkgutil
import sys
import zlib
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

from sightline.config import MediaConfig
from sightline.errors import ConfigError
from sightline.json_files import read_json
from sightline.models import families
from sightline.models.expert_layout import read_expert_layout
from sightline.models.family import Family, ProcessorFiles
from sightline.models.fields import Fields
from sightline.models.quantization_config import read_quantization
from sightline.prompt.tokenizer import Tokenizer
from sightline.spec import ModelSpec, ProcessorSpec

ENTRY_POINTS = "sightline.families"
# In the order in which a checkpoint is asked for the class of its processor.
_PROCESSOR_FILES = ("processor_config.json", "preprocessor_config.json", "video_preprocessor_config.json")


class Registry:
    def __init__(self) -> None:
        self.families: dict[str, Family] = {}  # by name
        self._by_type: dict[tuple[str, str | None], Family] = {}  # by model_type and processor_class
        self._modules: dict[str, str] = {}  # which module each is from, by name
        self._added: set[str] = set()

    def add_modules(self, names: Iterable[str], origin: str) -> None:
        """Families of modules that have not been added yet: dotted names, or paths of files and folders. `origin` is who named
        them, for messages."""
        for name in names:
            if name not in self._added:
                for family in _families_of(_import(name, origin), name, origin):
                    self.add(family, name)
                self._added.add(name)

    def add(self, family: Family, module: str) -> None:
        key = (family.model_type, family.processor_class)
        for what, other in (
            (f"named {family.name!r}", self.families.get(family.name)),
            (f"for model_type {family.model_type!r}" + _of_class(family), self._by_type.get(key)),
        ):
            if other is not None:
                raise ConfigError(f"Two families are {what}: of {self._modules[other.name]} and of {module}.")
        self.families[family.name] = self._by_type[key] = family
        self._modules[family.name] = module

    def find(self, model_type: object, folder: Path) -> Family:
        """The family of a checkpoint whose config.json says `model_type`."""
        sharing = {kind: family for (of, kind), family in self._by_type.items() if of == model_type}
        if not sharing:
            known = ", ".join(sorted({of for of, _ in self._by_type}))
            raise ConfigError(f"config.json: 'model_type' is {model_type!r}, but only {known} are supported.")
        kind = _processor_class(folder) if set(sharing) != {None} else None
        family = sharing.get(kind, sharing.get(None))
        if family is None:
            known = " or ".join(sorted(filter(None, sharing)))
            raise ConfigError(f"{folder} has a processor_class {kind!r}, but for model_type {model_type!r} it must be {known}.")
        return family

    def replaces_code(self, model_type: object) -> bool:
        """Whether a family takes the place of the code that checkpoints of this model_type bring."""
        return any(family.replaces_code for (of, _), family in self._by_type.items() if of == model_type)


@functools.cache
def registry() -> Registry:
    """That of this process."""
    found = Registry()
    own = [f"{families.__name__}.{module.name}" for module in pkgutil.iter_modules(families.__path__)]
    found.add_modules(own, "this package")
    for point in importlib.metadata.entry_points(group=ENTRY_POINTS):
        found.add_modules([point.module], f"the entry point {point.name!r} of {ENTRY_POINTS}")
    return found


def add_family_modules(names: Iterable[str]) -> None:
    """Families that the setting family_module names, for the rest of this process's life."""
    registry().add_modules(names, "family_module")


def family_named(name: str) -> Family:
    families = registry().families
    if name not in families:
        raise ConfigError(f"There is no family {name!r}; there are {', '.join(families)}.")
    return families[name]


def read_model_spec(folder: Path) -> ModelSpec:
    """config.json of a checkpoint folder, read once."""
    config = Fields(read_json(folder / "config.json"), "config.json")
    model_type = config.take("model_type")
    if "auto_map" in config and not registry().replaces_code(model_type):
        raise ConfigError("config.json asks for code from the checkpoint ('auto_map'); remote code is refused.")
    config.ignore("auto_map")
    family = registry().find(model_type, folder)
    fp8 = read_quantization(config.section("quantization_config")) if "quantization_config" in config else None
    if family.tokenizer_fields:
        config.supply(_token_ids(folder, family))
    spec = family.read_spec(config)
    return dataclasses.replace(spec, fp8=fp8, expert_layout=read_expert_layout(folder, config) if spec.text.experts else None)


def read_processor_spec(folder: Path, spec: ModelSpec, media: MediaConfig) -> ProcessorSpec:
    """preprocessor_config.json and video_preprocessor_config.json, or the two halves of a processor_config.json."""
    image_path, video_path = folder / "preprocessor_config.json", folder / "video_preprocessor_config.json"
    joint_path = folder / "processor_config.json"
    joint = Fields(read_json(joint_path) if joint_path.exists() else {}, joint_path.name)
    image = joint.section("image_processor") if "image_processor" in joint else None
    video = joint.section("video_processor") if "video_processor" in joint else None
    family = family_named(spec.family)
    if image is None and family.preprocessor_file == joint_path.name:
        image = joint  # the whole of processor_config.json is of images
    if image is None:
        without = family.replaces_code and not image_path.exists()
        image = Fields({} if without else read_json(image_path), image_path.name)
    if video is None:
        video = Fields(read_json(video_path) if video_path.exists() else {}, video_path.name)
    config = Fields(read_json(folder / "config.json"), "config.json")
    processor = family.read_processor(ProcessorFiles(image, video, config), spec)
    least = media.min_pixels if media.min_pixels is not None else processor.image.min_pixels
    most = media.max_pixels if media.max_pixels is not None else processor.image.max_pixels
    if not 0 < least <= most:
        raise ConfigError(f"The smallest image area, {least} pixels, must be above 0 and at most the largest, {most}.")
    return dataclasses.replace(processor, image=dataclasses.replace(processor.image, min_pixels=least, max_pixels=most))


def _token_ids(folder: Path, family: Family) -> dict[str, int]:
    """By the fields that the family names."""
    tokenizer = Tokenizer.from_folder(folder, family.added_tokens)
    return {field: tokenizer.id_of(name) for field, name in family.tokenizer_fields.items()}


def _import(name: str, origin: str) -> ModuleType:
    path = Path(name)
    try:
        if path.suffix != ".py" and not path.is_dir():
            return importlib.import_module(name)
        return _import_path(path.resolve())
    except Exception as error:  # foreign code: it may fail in its own way
        raise ConfigError(f"{origin} names {name!r}, which cannot be imported: {type(error).__name__}: {error}") from error


def _import_path(path: Path) -> ModuleType:
    """A file, or a folder with an __init__.py, whose own files it may import by relative names."""
    file, inside = (path / "__init__.py", [str(path)]) if path.is_dir() else (path, None)
    name = f"sightline_family_{path.stem}_{zlib.crc32(bytes(path)):08x}"  # two paths may end alike
    spec = importlib.util.spec_from_file_location(name, file, submodule_search_locations=inside)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _families_of(module: ModuleType, name: str, origin: str) -> list[Family]:
    found = list(getattr(module, "FAMILIES", ())) or [getattr(module, "FAMILY", None)]
    if not all(isinstance(family, Family) for family in found):
        raise ConfigError(f"{origin} names {name!r}, which has no FAMILY that is a sightline.models.family.Family.")
    return found


def _of_class(family: Family) -> str:
    return "" if family.processor_class is None else f" and processor_class {family.processor_class!r}"


def _processor_class(folder: Path) -> str | None:
    for name in _PROCESSOR_FILES:
        if (folder / name).exists() and (found := read_json(folder / name).get("processor_class")) is not None:
            return str(found)
    return None
