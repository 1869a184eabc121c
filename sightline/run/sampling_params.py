"""What a request asks of the sampler, with every default filled in and every range checked. No torch here."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from sightline.errors import PromptError
from sightline.types import SamplingParams, StructuredOutput

GREEDY_BELOW = 1e-5  # generation configs write 1e-6 for greedy
MAX_TOP_LOGPROBS = 20  # as the OpenAI API


@dataclass(frozen=True)
class ResolvedSampling:
    """SamplingParams as the sampler reads them: no None, no second way to say the same."""

    max_tokens: int
    min_tokens: int
    temperature: float
    top_p: float
    top_k: int  # 0: all
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: tuple[tuple[int, float], ...]  # (token id, what is added to its score), each id once
    seed: int | None
    n: int
    logprobs: bool
    top_logprobs: int
    structured: StructuredOutput | None = None  # checked by whoever compiles it

    @property
    def greedy(self) -> bool:
        return self.temperature < GREEDY_BELOW


def resolve_sampling(params: SamplingParams, defaults: Mapping[str, float], vocab_size: int | None = None) -> ResolvedSampling:
    """Fills unset fields from the checkpoint's generation_config, then from the usual values; checks the ranges.

    With `vocab_size`, the columns of the logits, ids in logit_bias and stop_token_ids are checked against it: the sampler
    itself cannot refuse one request of a batch.
    """

    def number(name: str, usual: float) -> float:
        given = getattr(params, name)
        return float(given if given is not None else defaults.get(name, usual))

    def whole(name: str, usual: int) -> int:
        value = number(name, usual)
        if not value.is_integer():  # also for inf and nan
            raise PromptError(f"{name} is {value}, but must be a whole number.")
        return int(value)

    top_k = whole("top_k", 0)
    resolved = ResolvedSampling(
        max_tokens=whole("max_tokens", 256),
        min_tokens=params.min_tokens,
        temperature=number("temperature", 1.0),
        top_p=number("top_p", 1.0),
        top_k=0 if top_k == -1 else top_k,
        min_p=number("min_p", 0.0),
        repetition_penalty=number("repetition_penalty", 1.0),
        presence_penalty=float(params.presence_penalty),
        frequency_penalty=float(params.frequency_penalty),
        logit_bias=tuple((int(token), float(bias)) for token, bias in params.logit_bias.items()),
        seed=params.seed,
        n=params.n,
        logprobs=params.logprobs,
        top_logprobs=params.top_logprobs,
        structured=params.structured,
    )
    _check(resolved, vocab_size)
    for token in params.stop_token_ids:
        _check_token("stop_token_ids", token, vocab_size)
    return resolved


def make_generator(seed: int | None, default_seed: int, index: int) -> np.random.Generator:
    """The random numbers of answer `index` of a request: every (seed, index) has a stream of its own."""
    chosen = default_seed if seed is None else seed
    # Entropy cannot be negative. The index is a spawn key because a plain list [seed, index] gives some pairs the same stream:
    # the words of a long seed and those of the next number are not told apart.
    sequence = np.random.SeedSequence(chosen % 2**64, spawn_key=(index,))
    return np.random.Generator(np.random.PCG64(sequence))


def _check(chosen: ResolvedSampling, vocab_size: int | None) -> None:
    for name, good, rule in (
        ("max_tokens", chosen.max_tokens >= 1, "at least 1"),
        (
            "min_tokens",
            0 <= chosen.min_tokens <= chosen.max_tokens,
            f"at least 0 and at most max_tokens, {chosen.max_tokens}",
        ),
        ("temperature", 0 <= chosen.temperature < math.inf, "at least 0 and finite"),
        ("top_p", 0 < chosen.top_p <= 1, "above 0 and at most 1"),
        ("top_k", chosen.top_k >= 0, "at least 0 (0 and -1 mean all)"),
        ("min_p", 0 <= chosen.min_p <= 1, "between 0 and 1"),
        ("repetition_penalty", 0 < chosen.repetition_penalty < math.inf, "above 0 and finite"),
        ("presence_penalty", -2 <= chosen.presence_penalty <= 2, "between -2 and 2"),
        ("frequency_penalty", -2 <= chosen.frequency_penalty <= 2, "between -2 and 2"),
        ("seed", chosen.seed is None or -(2**63) <= chosen.seed < 2**63, "a 64-bit integer"),
        ("n", chosen.n >= 1, "at least 1"),
        ("top_logprobs", 0 <= chosen.top_logprobs <= MAX_TOP_LOGPROBS, f"between 0 and {MAX_TOP_LOGPROBS}"),
        ("top_logprobs", chosen.logprobs or chosen.top_logprobs == 0, "0 unless logprobs is set"),
    ):
        if not good:
            raise PromptError(f"{name} is {getattr(chosen, name)}, but must be {rule}.")
    for token, bias in chosen.logit_bias:
        _check_token("logit_bias", token, vocab_size)
        if not -100 <= bias <= 100:
            raise PromptError(f"logit_bias of token {token} is {bias}, but must be between -100 and 100.")


def _check_token(name: str, token: int, vocab_size: int | None) -> None:
    if token < 0 or (vocab_size is not None and token >= vocab_size):
        rule = "at least 0" if vocab_size is None else f"between 0 and {vocab_size - 1}"
        raise PromptError(f"{name} names token {token}, but ids must be {rule}.")
