"""generation_config.json: end tokens and the sampling a checkpoint asks for by default."""

from dataclasses import dataclass
from pathlib import Path

from sightline.json_files import read_json
from sightline.models.fields import Fields
from sightline.spec import ModelSpec


@dataclass(frozen=True)
class GenerationDefaults:
    eos_token_ids: tuple[int, ...]
    sampling: dict[str, float]  # by SamplingParams' field names


def read_generation_defaults(folder: Path, spec: ModelSpec) -> GenerationDefaults:
    """Without the file, config.json's end tokens and no sampling defaults."""
    path = folder / "generation_config.json"
    if not path.exists():
        return GenerationDefaults(spec.eos_token_ids, {})
    config = Fields(read_json(path), path.name)
    sampling: dict[str, float] = {}
    for theirs, ours in (
        ("temperature", "temperature"),
        ("top_p", "top_p"),
        ("top_k", "top_k"),
        ("min_p", "min_p"),
        ("repetition_penalty", "repetition_penalty"),
        ("max_new_tokens", "max_tokens"),
    ):
        if theirs in config:
            sampling[ours] = config.number(theirs)
    if not config.flag("do_sample", False):
        sampling["temperature"] = 0.0  # as transformers: greedy unless the file asks for sampling
    ends = config.take("eos_token_id", list(spec.eos_token_ids))
    return GenerationDefaults(tuple(ends) if isinstance(ends, list) else (ends,), sampling)
