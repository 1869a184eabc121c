"""The same questions with each optimisation on and off: none may cost accuracy, and in float32 none changes an answer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sightline.evals.signs.evaluate import Evaluation

# Fields of EngineConfig that differ from the defaults. The first has everything as it comes and is what the others are held to.
OPTIMISATIONS: tuple[tuple[str, Mapping[str, Any]], ...] = (
    ("as it comes", {}),
    ("no prefix cache", {"enable_prefix_caching": False}),
    ("chunks of 24 tokens", {"max_num_batched_tokens": 24}),
    ("full patches", {"compact_patches": False}),
    ("one image at a time", {"max_patches_per_step": 1, "lookahead_patches": 0}),
    ("one request at a time", {"max_num_seqs": 1}),
)


@dataclass(frozen=True)
class Variant:
    name: str
    settings: Mapping[str, Any]
    result: Evaluation


def differing(one: Evaluation, other: Evaluation) -> int:
    """How many questions were answered differently."""
    return sum(a.got != b.got for a, b in zip(one.asked, other.asked, strict=True))


def table(variants: Sequence[Variant]) -> list[str]:
    """A line per variant: accuracy by skill, and how many answers differ from the first variant's."""
    skills = [score.skill for score in variants[0].result.scores]
    lines = [f"{'':22s}" + "".join(f"{skill:>11s}" for skill in skills) + f"{'differ':>9s}"]
    for variant in variants:
        scores = "".join(f"{score.accuracy:11.1%}" for score in variant.result.scores)
        lines.append(f"{variant.name:22s}{scores}{differing(variants[0].result, variant.result):9d}")
    return lines


def as_json(variants: Sequence[Variant]) -> dict[str, object]:
    first = variants[0].result
    return {
        "task": "signs, optimisations on and off",
        "seed": first.seed,
        "samples": first.samples,
        "variants": [
            {
                "name": variant.name,
                "settings": dict(variant.settings),
                "accuracy": {score.skill: score.accuracy for score in variant.result.scores},
                "asked": len(variant.result.asked),
                "differ": differing(first, variant.result),
            }
            for variant in variants
        ],
    }
