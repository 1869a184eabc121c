"""What a request asks of the sampler, with every default filled in and every range checked. No torch here."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from sightline.sampling_rules import USUAL_MAX_TOKENS, check_min_tokens, check_token, number, whole
from sightline.types import SamplingParams, StructuredOutput

GREEDY_BELOW = 1e-5  # generation configs write 1e-6 for greedy


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
    skip_special_tokens: bool = True

    @property
    def greedy(self) -> bool:
        return self.temperature < GREEDY_BELOW

    @property
    def penalised(self) -> bool:
        """Whether tokens that have come before count."""
        return self.repetition_penalty != 1.0 or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0


def resolve_sampling(params: SamplingParams, defaults: Mapping[str, float], vocab_size: int | None = None) -> ResolvedSampling:
    """Fills unset fields from the checkpoint's generation_config, then from the usual values; the others are checked already.

    With `vocab_size`, the columns of the logits, ids in logit_bias and stop_token_ids are checked against it: the sampler
    itself cannot refuse one request of a batch.
    """

    def asked(name: str, usual: float) -> float:
        given = getattr(params, name)
        return given if given is not None else defaults.get(name, usual)

    top_k = whole("top_k", asked("top_k", 0))
    resolved = ResolvedSampling(
        max_tokens=whole("max_tokens", asked("max_tokens", USUAL_MAX_TOKENS)),
        min_tokens=params.min_tokens,
        temperature=number("temperature", asked("temperature", 1.0)),
        top_p=number("top_p", asked("top_p", 1.0)),
        top_k=0 if top_k == -1 else top_k,
        min_p=number("min_p", asked("min_p", 0.0)),
        repetition_penalty=number("repetition_penalty", asked("repetition_penalty", 1.0)),
        presence_penalty=float(params.presence_penalty),
        frequency_penalty=float(params.frequency_penalty),
        logit_bias=tuple((int(token), float(bias)) for token, bias in params.logit_bias.items()),
        seed=params.seed,
        n=params.n,
        logprobs=params.logprobs,
        top_logprobs=params.top_logprobs,
        structured=params.structured,
        skip_special_tokens=params.skip_special_tokens,
    )
    check_min_tokens(resolved.min_tokens, resolved.max_tokens)
    for token in params.logit_bias:
        check_token("logit_bias", token, vocab_size)
    for token in params.stop_token_ids:
        check_token("stop_token_ids", token, vocab_size)
    return resolved


def make_generator(seed: int | None, default_seed: int, index: int) -> np.random.Generator:
    """The random numbers of answer `index` of a request: every (seed, index) has a stream of its own."""
    chosen = default_seed if seed is None else seed
    # Entropy cannot be negative. The index is a spawn key because a plain list [seed, index] gives some pairs the same stream:
    # the words of a long seed and those of the next number are not told apart.
    sequence = np.random.SeedSequence(chosen % 2**64, spawn_key=(index,))
    return np.random.Generator(np.random.PCG64(sequence))


class UniformNumbers:
    """The random numbers of one answer: number i belongs to output position i, whatever happened before.

    So neither a preemption nor a rejected draft shifts those that follow.
    """

    def __init__(self, seed: int | None, default_seed: int, index: int) -> None:
        self._generator = make_generator(seed, default_seed, index)
        self._numbers: list[float] = []

    def at(self, position: int) -> float:
        while len(self._numbers) <= position:
            self._numbers += self._generator.random(max(16, len(self._numbers))).tolist()
        return self._numbers[position]
