"""Writes a checkpoint folder in the Hub's layout: JSON files, tokenizer, template and, if wanted, random weights."""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from sightline.errors import CheckpointError, ConfigError
from sightline.models.checkpoint import INDEX_FILE, SINGLE_FILE
from sightline.models.families import FAMILIES, read_model_spec
from sightline.models.family import Family
from sightline.models.weight_table import Shape, WeightTable, hub_name
from sightline.prompt.byte_tokenizer import SMALL_BASE, special_tokens, write_byte_tokenizer
from sightline.prompt.template import own_template

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
) -> None:
    """A loadable checkpoint. Every parameter is random, norms and biases too, so that no mistake hides behind a 0 or a 1."""
    family, config = _choose(family_name, size)
    if folder.exists() and any(folder.iterdir()):
        raise CheckpointError(f"{folder} is not empty; a new checkpoint is written to a new or empty folder.")
    folder.mkdir(parents=True, exist_ok=True)
    vocab = config["text_config"]["vocab_size"]
    tokens = special_tokens(family.name, SMALL_BASE if size == "tiny" else None)
    assert max(tokens.values()) < vocab
    _write_json_files(folder, family, config, tokens, dtype)
    write_byte_tokenizer(folder, tokens, eos=family.eos_tokens[0])
    (folder / "chat_template.jinja").write_text(own_template(family.name), encoding="utf-8")
    if weights:
        table = family.weight_table(read_model_spec(folder))
        _write_weights(folder, table, dtype, seed, shard_bytes)


def _choose(family_name: str, size: str) -> tuple[Family, dict[str, Any]]:
    if family_name not in FAMILIES:
        raise ConfigError(f"There is no family {family_name!r}; there are {', '.join(FAMILIES)}.")
    family = FAMILIES[family_name]
    if size not in family.sizes:
        raise ConfigError(f"Family {family_name} has no size {size!r}; it has {', '.join(family.sizes)}.")
    return family, json.loads(json.dumps(family.sizes[size]))  # a copy that may be filled in


def _write_json_files(folder: Path, family: Family, config: dict[str, Any], tokens: dict[str, int], dtype: torch.dtype) -> None:
    ends = [tokens[name] for name in family.eos_tokens]
    config["text_config"] |= {
        "model_type": f"{family.model_type}_text",
        "dtype": str(dtype).removeprefix("torch."),
        "eos_token_id": ends[0] if len(ends) == 1 or family.model_type != "glm4v" else ends,
        "pad_token_id": tokens["<|endoftext|>"],
    }
    if family.model_type == "qwen2_5_vl":  # transformers fills in an id outside a small vocabulary otherwise
        config["text_config"]["bos_token_id"] = tokens["<|endoftext|>"]
    config["vision_config"]["model_type"] = f"{family.model_type}_vision"
    config |= {"architectures": [family.architecture], "model_type": family.model_type}
    config |= {field: tokens[name] for field, name in family.token_fields.items()}
    files: dict[str, Any] = {
        "config.json": config,
        "generation_config.json": {"do_sample": False, "eos_token_id": ends, "pad_token_id": tokens["<|endoftext|>"]},
        "preprocessor_config.json": dict(family.preprocessor),
    }
    if family.video_preprocessor is not None:
        files["video_preprocessor_config.json"] = dict(family.video_preprocessor)
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _write_weights(folder: Path, table: WeightTable, dtype: torch.dtype, seed: int, shard_bytes: int) -> None:
    shapes = {hub_name(name): shape for source in table.values() for name, shape in source.tensors}
    shards = list(_shards(shapes, dtype.itemsize, shard_bytes))
    generator = torch.Generator().manual_seed(seed)
    places: dict[str, str] = {}
    for number, names in enumerate(shards, start=1):
        file = SINGLE_FILE if len(shards) == 1 else f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        tensors = {name: _random_tensor(name, shapes[name], generator).to(dtype) for name in names}
        save_file(tensors, folder / file, metadata={"format": "pt"})
        places |= dict.fromkeys(names, file)
    if len(shards) > 1:
        total = sum(math.prod(shape) for shape in shapes.values()) * dtype.itemsize
        index = {"metadata": {"total_size": total}, "weight_map": places}
        (folder / INDEX_FILE).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def _shards(shapes: dict[str, Shape], itemsize: int, most: int) -> Iterator[list[str]]:
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


def _random_tensor(name: str, shape: Shape, generator: torch.Generator) -> torch.Tensor:
    """Matrices keep the size of what passes through them, so attention is not flat and a deep stack stays finite."""
    value = torch.randn(shape, generator=generator)
    if len(shape) == 1:
        return 1.0 + 0.2 * value if name.endswith("weight") else 0.2 * value
    if "embed_tokens" in name or "pos" in name.rsplit(".", 2)[-2]:
        return value
    return value * math.sqrt(1 / math.prod(shape[1:]))
