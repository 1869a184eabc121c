"""What a request may ask of the sampler, what it gets when it does not ask, and its random numbers."""

from typing import Any

import pytest

from sightline.errors import PromptError
from sightline.sampling_params import UniformNumbers, make_generator, resolve_sampling
from sightline.types import SamplingParams
from worker.sampling_rows import sampling


def test_defaults_come_from_the_checkpoint_and_yield_to_the_request() -> None:
    """Red if the order is another than request, checkpoint, usual value."""
    defaults = {"temperature": 0.7, "top_k": 20.0, "repetition_penalty": 1.05}
    resolved = resolve_sampling(SamplingParams(temperature=0.2, repetition_penalty=1.0), defaults)
    assert (resolved.temperature, resolved.top_k, resolved.repetition_penalty) == (0.2, 20, 1.0)
    assert (resolved.top_p, resolved.min_p, resolved.max_tokens) == (1.0, 0.0, 256)
    assert resolve_sampling(SamplingParams(top_k=0), defaults).top_k == 0  # zero is a value, not "unset"
    assert resolve_sampling(SamplingParams(), defaults).temperature == 0.7


def test_every_field_arrives() -> None:
    """Red if a field is dropped on the way to the sampler."""
    limits = {"max_tokens": 9, "min_tokens": 3, "n": 4, "seed": -(2**63), "logprobs": True, "top_logprobs": 20}
    filters = {"temperature": 0.5, "top_p": 0.6, "top_k": 7, "min_p": 0.1}
    penalties = {"repetition_penalty": 1.2, "presence_penalty": -2.0, "frequency_penalty": 2.0}
    values: dict[str, Any] = {**limits, **filters, **penalties}
    resolved = resolve_sampling(SamplingParams(**values, logit_bias={5: -100, 6: 100.0}), {"temperature": 0.1})
    assert {name: getattr(resolved, name) for name in values} == values
    assert resolved.logit_bias == ((5, -100.0), (6, 100.0))
    hash(resolved)


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"max_tokens": 0}, "max_tokens is 0, but must be at least 1."),
        ({"max_tokens": 1.5}, "max_tokens is 1.5, but must be a whole number."),
        ({"min_tokens": -1}, "min_tokens is -1, but must be at least 0 and at most max_tokens, 256."),
        ({"min_tokens": 8, "max_tokens": 7}, "min_tokens is 8, but must be at least 0 and at most max_tokens, 7."),
        ({"temperature": -1}, "temperature is -1.0, but must be at least 0 and finite."),
        ({"temperature": float("nan")}, "temperature is nan, but must be at least 0 and finite."),
        ({"temperature": float("inf")}, "temperature is inf, but must be at least 0 and finite."),
        ({"top_p": 0}, "top_p is 0.0, but must be above 0 and at most 1."),
        ({"top_p": 1.5}, "top_p is 1.5, but must be above 0 and at most 1."),
        ({"top_k": -2}, "top_k is -2, but must be at least 0 (0 and -1 mean all)."),
        ({"top_k": 2.5}, "top_k is 2.5, but must be a whole number."),
        ({"seed": 10**400}, f"seed is {10**400}, but must be a 64-bit integer."),
        ({"temperature": 10**400}, "temperature is inf, but must be at least 0 and finite."),
        ({"frequency_penalty": -(10**400)}, "frequency_penalty is -inf, but must be between -2 and 2."),
        ({"min_p": 2}, "min_p is 2.0, but must be between 0 and 1."),
        ({"repetition_penalty": 0}, "repetition_penalty is 0.0, but must be above 0 and finite."),
        ({"presence_penalty": 2.1}, "presence_penalty is 2.1, but must be between -2 and 2."),
        ({"frequency_penalty": -2.1}, "frequency_penalty is -2.1, but must be between -2 and 2."),
        ({"seed": 2**63}, "seed is 9223372036854775808, but must be a 64-bit integer."),
        ({"n": 0}, "n is 0, but must be at least 1."),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs is 21, but must be between 0 and 20."),
        ({"top_logprobs": 2}, "top_logprobs is 2, but must be 0 unless logprobs is set."),
        ({"logit_bias": {3: 101}}, "logit_bias of token 3 is 101.0, but must be between -100 and 100."),
        ({"logit_bias": {-3: 1}}, "logit_bias names token -3, but ids must be at least 0."),
    ],
)
def test_values_out_of_range_are_named(values: dict[str, Any], sentence: str) -> None:
    """Red if a value that the sampler cannot use gets through, or the message names another."""
    with pytest.raises(PromptError) as caught:
        sampling(values)
    assert str(caught.value) == sentence


def test_biased_ids_are_checked_against_the_vocabulary() -> None:
    """Red if an id beyond the logits gets through: in a batch it would change another request's scores."""
    resolve_sampling(SamplingParams(logit_bias={99: 1.0}), {}, vocab_size=100)
    with pytest.raises(PromptError, match=r"logit_bias names token 100, but ids must be between 0 and 99\."):
        resolve_sampling(SamplingParams(logit_bias={100: 1.0}), {}, vocab_size=100)
    resolve_sampling(SamplingParams(stop_token_ids=(0, 99)), {}, vocab_size=100)
    with pytest.raises(PromptError, match=r"stop_token_ids names token 100, but ids must be between 0 and 99\."):
        resolve_sampling(SamplingParams(stop_token_ids=(5, 100)), {}, vocab_size=100)


def test_the_checkpoints_values_are_checked_too() -> None:
    """Red if a bad generation_config reaches the sampler."""
    with pytest.raises(PromptError, match=r"top_p is 1\.2"):
        resolve_sampling(SamplingParams(), {"top_p": 1.2})


def test_seeds_repeat_and_answers_differ() -> None:
    """Red if a seed does not repeat, the n answers share numbers, or two (seed, index) pairs have the same stream."""
    seeds = (None, 0, 1, -1, 5, 5 + 2**32, 2**63 - 1, -(2**63))
    streams = {(seed, index): tuple(make_generator(seed, 77, index).random(4)) for seed in seeds for index in range(4)}
    assert len(set(streams.values())) == len(streams)
    assert all(tuple(make_generator(seed, 77, index).random(4)) == stream for (seed, index), stream in streams.items())
    assert tuple(make_generator(77, 0, 2).random(4)) == streams[None, 2]  # without a seed, the default one


def test_a_number_belongs_to_its_position() -> None:
    """Red if the number of a position depends on which were asked for before: a preemption would change the answer."""
    inorder = [UniformNumbers(3, 0, 1).at(position) for position in range(200)]
    numbers = UniformNumbers(3, 0, 1)
    assert inorder == [UniformNumbers(3, 0, 1).at(p) for p in range(200)]
    assert [numbers.at(p) for p in (150, 3, 3, 199, 0)] == [inorder[p] for p in (150, 3, 3, 199, 0)]
    assert inorder == make_generator(3, 0, 1).random(200).tolist()
    assert inorder[:9] != [UniformNumbers(3, 0, 2).at(position) for position in range(9)]
