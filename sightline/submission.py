"""What the engine is asked: a prompt and how to answer it. The library, the server and benchmarks all hand over the same."""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from sightline.sampling_params import ResolvedSampling
from sightline.types import Request, SamplingParams


@dataclass(frozen=True)
class Submission:
    request: Request
    sampling: ResolvedSampling
    end_tokens: frozenset[int] = frozenset()  # each ends an answer
    stop: tuple[str, ...] = ()  # texts that end an answer
    priority: int = 0  # smaller ones go first
    answer_returns: bool = False  # the answer is likely to come back as a part of a prompt, as in a tool loop
    cache_salt: str = ""  # the tenant: prompts share cached prefixes only with those of the same one
    affinity: bytes = b""  # equal for prompts that begin alike, such as the rounds of a conversation
    seconds: dict[str, float] = field(default_factory=dict)  # what the stages so far took


def tenant_of(caller: str, cache_salt: str) -> str:
    """A name for those who share caches: requests of the same caller with the same salt."""
    if not caller and not cache_salt:
        return ""
    return hashlib.sha256(f"{len(caller)} {caller}{cache_salt}".encode(errors="surrogatepass")).hexdigest()


def of_tenant(request: Request, tenant: str) -> Request:
    """The request with keys of its items that are the tenant's own: nobody else finds their embeddings, pixels or pages."""
    if not tenant:
        return request
    salt = hashlib.sha256(tenant.encode()).digest()
    items = tuple(replace(item, key=hashlib.sha256(salt + item.key).digest()) for item in request.items)
    return replace(request, items=items)


def answer_returns(tools: bool, template_kwargs: Mapping[str, Any] | None) -> bool:
    """Whether the next prompt is likely to have the answer in it as it is: in a tool loop, or where templates keep thoughts."""
    return tools or bool((template_kwargs or {}).get("preserve_thinking"))


def end_tokens_of(params: SamplingParams, eos_token_ids: Iterable[int]) -> frozenset[int]:
    """The request's own end tokens, and the model's unless they are to be ignored."""
    return frozenset(params.stop_token_ids).union(() if params.ignore_eos else eos_token_ids)
