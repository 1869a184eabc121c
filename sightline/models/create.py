"""Writes a checkpoint folder in the Hub's layout: JSON files, tokenizer, template and, if wanted, random weights."""

import dataclasses
import json
import math
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from sightline.errors import CheckpointError, ConfigError
from sightline.models.expert_layout import INDEX_FILE, SINGLE_FILE, VERSIONS
from sightline.models.family import Family
from sightline.models.registry import family_named, read_model_spec
from sightline.models.weight_table import WeightTable
from sightline.models.weights.expressions import Stored, TensorShape
from sightline.prompt.byte_tokenizer import SMALL_BASE, write_byte_tokenizer
from sightline.spec import ExpertLayout

SHARD_BYTES = 4 * 1024**3


def create_checkpoint(
    folder: Path,
    family_name: str,
    size: str,
    *,
    weights: bool = True,
    dtype: torch.dtype = torch.bfloat16,
    seed: int = 0,
    shard_bytes: int = SHARD_BYTES,
    expert_layout: ExpertLayout | None = None,
) -> None:
    """A loadable checkpoint. Every parameter is random, norms and biases too, so that no mistake hides behind a 0 or a 1."""
    family, config = _choose(family_name, size)
    if expert_layout is not None:
        config["transformers_version"] = _version_for(family, expert_layout)
    if folder.exists() and any(folder.iterdir()):
        raise CheckpointError(f"{folder} is not empty; a new checkpoint is written to a new or empty folder.")
    folder.mkdir(parents=True, exist_ok=True)
    vocab = _text_of(config, family)["vocab_size"]
    tokens = family.special_tokens.ids(SMALL_BASE if size.startswith("tiny") else None)
    if max(tokens.values()) >= vocab:  # of a size with fewer tokens than most: the last of them
        tokens = family.special_tokens.ids(vocab - len(tokens))
    preprocessor = family.preprocessor_of_size.get(size, family.preprocessor)
    _write_json_files(folder, family, config, tokens, dtype, preprocessor)
    write_byte_tokenizer(folder, tokens, eos=family.eos_tokens[0])
    shutil.copyfile(family.chat_template, folder / "chat_template.jinja")
    if weights:
        table = family.weight_table(dataclasses.replace(read_model_spec(folder), expert_layout=expert_layout))
        _write_weights(folder, table, dtype, seed, shard_bytes)


def _choose(family_name: str, size: str) -> tuple[Family, dict[str, Any]]:
    family = family_named(family_name)
    if size not in family.sizes:
        raise ConfigError(f"Family {family_name} has no size {size!r}; it has {', '.join(family.sizes)}.")
    return family, json.loads(json.dumps(family.sizes[size]))  # a copy that may be filled in


def _text_of(config: dict[str, Any], family: Family) -> dict[str, Any]:
    """The language model's fields, which some families have in config.json itself."""
    text: dict[str, Any] = config.get(family.text_section, config)
    return text


def _version_for(family: Family, layout: ExpertLayout) -> str:
    """What config.json must say, so that this layout is seen."""
    if layout not in family.expert_layouts:
        known = " or ".join(family.expert_layouts) or "none"
        raise ConfigError(f"Family {family.name} has no experts stored as {layout!r}; it has {known}.")
    return VERSIONS[layout]


def _write_json_files(
    folder: Path,
    family: Family,
    config: dict[str, Any],
    tokens: dict[str, int],
    dtype: torch.dtype,
    preprocessor: Mapping[str, Any],
) -> None:
    ends, text = [tokens[name] for name in family.eos_tokens], _text_of(config, family)
    text |= {"dtype": str(dtype).removeprefix("torch.")}
    for field, named in family.text_token_fields.items():
        text[field] = tokens[named] if isinstance(named, str) else [tokens[name] for name in named]
    config |= {"architectures": [family.architecture], "model_type": family.model_type}
    config |= {field: tokens[name] for field, name in family.token_fields.items()}
    files: dict[str, Any] = {
        "config.json": config,
        "generation_config.json": {
            "do_sample": False,
            "eos_token_id": ends,
            "pad_token_id": text.get("pad_token_id", ends[0]),  # a family may name none
        },
        family.preprocessor_file: dict(preprocessor),
    }
    if family.video_preprocessor is not None:
        files["video_preprocessor_config.json"] = dict(family.video_preprocessor)
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _write_weights(folder: Path, table: WeightTable, dtype: torch.dtype, seed: int, shard_bytes: int) -> None:
    stored = {table.hub_name(name): tensor for name, tensor in table.stored().items()}
    shapes = {name: tensor.shape for name, tensor in stored.items()}
    shards = list(_shards(shapes, dtype.itemsize, shard_bytes))
    generator = torch.Generator().manual_seed(seed)
    weight_map: dict[str, str] = {}
    for number, names in enumerate(shards, start=1):
        file = SINGLE_FILE if len(shards) == 1 else f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        tensors = {name: _random_tensor(name, stored[name], generator).to(dtype) for name in names}
        save_file(tensors, folder / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(names, file)
    if len(shards) > 1:
        total = sum(math.prod(shape) for shape in shapes.values()) * dtype.itemsize
        index = {"metadata": {"total_size": total}, "weight_map": weight_map}
        (folder / INDEX_FILE).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def _shards(shapes: dict[str, TensorShape], itemsize: int, most: int) -> Iterator[list[str]]:
    names: list[str] = []
    used = 0
    for name, shape in shapes.items():
        size = math.prod(shape) * itemsize
        if names and used + size > most:
            yield names
            names, used = [], 0
        names.append(name)
        used += size
    yield names


def _random_tensor(name: str, stored: Stored, generator: torch.Generator) -> torch.Tensor:
    """Matrices keep the size of what passes through them, so attention is not flat and a deep stack stays finite."""
    value = torch.randn(stored.shape, generator=generator)
    if stored.mean is not None:
        return stored.mean + 0.2 * value
    if value.ndim == 1:
        return 1.0 + 0.2 * value if name.endswith("weight") else 0.2 * value
    if "embed_tokens." in name or "pos" in name.rsplit(".", 2)[-2]:
        return value
    return value * math.sqrt(1 / stored.fan_in)
