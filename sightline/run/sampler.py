"""From logits to one token, for one sequence. All arithmetic in float32."""

from dataclasses import dataclass

import torch

from sightline.errors import PromptError
from sightline.types import SamplingParams


@dataclass(frozen=True)
class ResolvedSampling:
    """SamplingParams with every default filled in."""

    max_tokens: int
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    repetition_penalty: float


def resolve_sampling(params: SamplingParams, defaults: dict[str, float]) -> ResolvedSampling:
    """Fills unset fields from the checkpoint's generation_config, then from the usual values; checks the ranges."""

    def value(name: str, usual: float) -> float:
        given = getattr(params, name)
        return float(given if given is not None else defaults.get(name, usual))

    resolved = ResolvedSampling(
        max_tokens=int(value("max_tokens", 256)),
        temperature=value("temperature", 1.0),
        top_p=value("top_p", 1.0),
        top_k=int(value("top_k", 0)),
        min_p=value("min_p", 0.0),
        repetition_penalty=value("repetition_penalty", 1.0),
    )
    for name, good, rule in (
        ("max_tokens", resolved.max_tokens >= 1, "at least 1"),
        ("temperature", resolved.temperature >= 0, "at least 0"),
        ("top_p", 0 < resolved.top_p <= 1, "above 0 and at most 1"),
        ("top_k", resolved.top_k >= -1, "at least 0 (0 and -1 mean all)"),
        ("min_p", 0 <= resolved.min_p <= 1, "between 0 and 1"),
        ("repetition_penalty", resolved.repetition_penalty > 0, "above 0"),
    ):
        if not good:
            raise PromptError(f"{name} is {getattr(resolved, name)}, but must be {rule}.")
    return resolved


def sample(logits: torch.Tensor, sampling: ResolvedSampling, seen: torch.Tensor, generator: torch.Generator | None) -> int:
    """Chooses a token. logits [vocab]; seen [tokens] int64: prompt and answer so far, for the repetition penalty.

    The order is transformers': penalty, temperature, top-k, top-p, min-p.
    """
    scores = logits.float()
    if sampling.repetition_penalty != 1.0:
        at = scores[seen]
        at = torch.where(at < 0, at * sampling.repetition_penalty, at / sampling.repetition_penalty)
        scores = scores.scatter(0, seen, at)
    if sampling.temperature < 1e-5:  # generation configs write 1e-6 for greedy
        return int(scores.argmax())
    ordered, order = (scores / sampling.temperature).sort(descending=True)
    keep = torch.ones_like(ordered, dtype=torch.bool)
    if sampling.top_k > 0:
        keep[sampling.top_k :] = False
    chances = ordered.masked_fill(~keep, -torch.inf).softmax(0)
    if sampling.top_p < 1.0:
        keep &= (chances.cumsum(0) - chances) < sampling.top_p  # the token that crosses the line stays
        chances = ordered.masked_fill(~keep, -torch.inf).softmax(0)
    if sampling.min_p > 0.0:
        keep &= chances >= sampling.min_p * chances[0]
        chances = ordered.masked_fill(~keep, -torch.inf).softmax(0)
    return int(order[torch.multinomial(chances.cpu(), 1, generator=generator)])
