"""What values a request may ask of the sampler: one rule a name, for whoever makes the parameters and whoever fills them in."""

import math
from collections.abc import Callable, Mapping
from numbers import Real
from typing import Any

from sightline.errors import ParameterError

MAX_TOP_LOGPROBS = 20  # as the OpenAI API
USUAL_MAX_TOKENS = 256
_Rule = tuple[Callable[[Any], bool], str]

WHOLE: dict[str, _Rule] = {
    "max_tokens": (lambda value: value >= 1, "at least 1"),
    "top_k": (lambda value: value >= -1, "at least 0 (0 and -1 mean all)"),
    "seed": (lambda value: -(2**63) <= value < 2**63, "a 64-bit integer"),
    "n": (lambda value: value >= 1, "at least 1"),
    "top_logprobs": (lambda value: 0 <= value <= MAX_TOP_LOGPROBS, f"between 0 and {MAX_TOP_LOGPROBS}"),
}
NUMBERS: dict[str, _Rule] = {
    "temperature": (lambda value: 0 <= value < math.inf, "at least 0 and finite"),
    "top_p": (lambda value: 0 < value <= 1, "above 0 and at most 1"),
    "min_p": (lambda value: 0 <= value <= 1, "between 0 and 1"),
    "repetition_penalty": (lambda value: 0 < value < math.inf, "above 0 and finite"),
    "presence_penalty": (lambda value: -2 <= value <= 2, "between -2 and 2"),
    "frequency_penalty": (lambda value: -2 <= value <= 2, "between -2 and 2"),
}


def number(name: str, value: Any) -> float:
    try:
        found = float(_real(name, value))
    except OverflowError:  # a whole number with hundreds of digits
        found = math.inf if value > 0 else -math.inf
    return float(_checked(name, found, NUMBERS[name]))


def whole(name: str, value: Any) -> int:
    if not isinstance(_real(name, value), int) and not float(value).is_integer():  # also for inf and nan
        raise ParameterError(f"{name} is {value}, but must be a whole number.", name)
    return int(_checked(name, int(value), WHOLE[name]))


def check_min_tokens(min_tokens: int, max_tokens: int | None) -> None:
    """`max_tokens` is None where it is not known yet."""
    most = USUAL_MAX_TOKENS if max_tokens is None else max_tokens
    if _real("min_tokens", min_tokens) < 0 or (max_tokens is not None and min_tokens > most):
        sentence = f"min_tokens is {min_tokens}, but must be at least 0 and at most max_tokens, {most}."
        raise ParameterError(sentence, "min_tokens")


def check_top_logprobs(top_logprobs: int, logprobs: bool) -> None:
    if top_logprobs and not logprobs:
        raise ParameterError(f"top_logprobs is {top_logprobs}, but must be 0 unless logprobs is set.", "top_logprobs")


def check_bias(logit_bias: Mapping[int, float]) -> None:
    for token, bias in logit_bias.items():
        check_token("logit_bias", token, None)
        if not -100 <= bias <= 100:
            sentence = f"logit_bias of token {token} is {float(bias)}, but must be between -100 and 100."
            raise ParameterError(sentence, "logit_bias")


def check_token(name: str, token: int, vocab_size: int | None) -> None:
    """`vocab_size` is None where it is not known yet."""
    if token < 0 or (vocab_size is not None and token >= vocab_size):
        rule = "at least 0" if vocab_size is None else f"between 0 and {vocab_size - 1}"
        raise ParameterError(f"{name} names token {token}, but ids must be {rule}.", name)


def _real(name: str, value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise ParameterError(f"{name} is {value!r}, but must be a number.", name)
    return value


def _checked(name: str, value: float, rule: _Rule) -> float:
    good, words = rule
    if not good(value):
        raise ParameterError(f"{name} is {value}, but must be {words}.", name)
    return value
