"""The delta rule, its convolution and its norm against transformers' own functions, and cut in two."""

import dataclasses
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from oracle import transformers
from sightline.ops.causal_conv import causal_conv, new_sequences
from sightline.ops.delta_rule import gated_delta_rule
from sightline.ops.dispatch import ExampleMaker
from sightline.ops.norms import gated_rms_norm

THEIRS: Any = transformers.models.qwen3_5.modeling_qwen3_5
KEY_HEADS, VALUE_HEADS, KEY_DIM, VALUE_DIM = 2, 4, 16, 32
MAKE = ExampleMaker(torch.device("cpu"), torch.float32)


def inputs(tokens: int, begins: bool) -> dict[str, Any]:
    sequences, states = new_sequences(MAKE, (tokens,), (begins,), 3)
    return {
        "qkv": MAKE.normal(tokens, 2 * KEY_HEADS * KEY_DIM + VALUE_HEADS * VALUE_DIM),
        "b": MAKE.normal(tokens, VALUE_HEADS),
        "a": MAKE.normal(tokens, VALUE_HEADS),
        "a_log": MAKE.normal(VALUE_HEADS) - 3,
        "dt_bias": MAKE.normal(VALUE_HEADS),
        "kept": MAKE.normal(3, VALUE_HEADS, KEY_DIM, VALUE_DIM),
        "sequences": sequences,
        "states": states,
    }


@pytest.mark.parametrize("begins", [True, False])
@pytest.mark.parametrize("tokens", [1, 2, 64, 65, 200])
def test_the_rule_is_that_of_transformers(tokens: int, begins: bool) -> None:
    """Red if a gate, a scale, an order of heads or the state afterwards differs."""
    given = inputs(tokens, begins)
    slot = int(given["states"].slots[0])
    before = None if begins else given["kept"][slot].clone()[None]
    q, k, v = given["qkv"].split([KEY_HEADS * KEY_DIM] * 2 + [VALUE_HEADS * VALUE_DIM], 1)
    q, k = (x.view(1, tokens, KEY_HEADS, KEY_DIM).repeat_interleave(VALUE_HEADS // KEY_HEADS, 2) for x in (q, k))
    g = -given["a_log"].exp() * F.softplus(given["a"] + given["dt_bias"])
    rule = THEIRS.torch_recurrent_gated_delta_rule if tokens == 1 else THEIRS.torch_chunk_gated_delta_rule
    expected, after = rule(
        q, k, v.view(1, tokens, VALUE_HEADS, VALUE_DIM), g=g[None], beta=given["b"].sigmoid()[None], initial_state=before,
        output_final_state=True, use_qk_l2norm_in_kernel=True,
    )  # fmt: skip
    found = gated_delta_rule.definition(**given)
    torch.testing.assert_close(found, expected[0], atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(given["kept"][slot], after[0], atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("cuts", [(64,), (128,), (64, 128, 192)])
def test_cut_at_a_multiple_of_64_nothing_changes(cuts: tuple[int, ...]) -> None:
    """Bit for bit: red if chunks depend on how many there are, or the state is rounded between calls."""
    given = inputs(250, True)
    other = {**given, "kept": given["kept"].clone()}
    whole = gated_delta_rule.definition(**given)
    parts, start = [], 0
    for end in (*cuts, 250):
        sequences, _ = new_sequences(MAKE, (end - start,), (start == 0,), 3)
        states = dataclasses.replace(given["states"], fresh=torch.tensor([start == 0]))
        rows = {name: given[name][start:end] for name in ("qkv", "b", "a")}
        parts.append(gated_delta_rule.definition(**{**other, **rows, "sequences": sequences, "states": states}))
        start = end
    assert torch.equal(torch.cat(parts), whole) and torch.equal(other["kept"], given["kept"])


def test_the_convolution_is_that_of_transformers() -> None:
    x, weight = MAKE.normal(20, 12), MAKE.normal(12, 4)
    sequences, states = new_sequences(MAKE, (20,), (True,), 1)
    expected = THEIRS.causal_conv1d_fn(x.T[None], weight, activation="silu")[0].T
    torch.testing.assert_close(causal_conv.definition(x, weight, torch.empty(1, 3, 12), sequences, states), expected)


def test_the_gated_norm_is_that_of_transformers() -> None:
    x, gate = MAKE.normal(6, 4, 32), MAKE.normal(6, 128)
    theirs = THEIRS.Qwen3_5RMSNormGated(32, eps=1e-6)
    theirs.weight.data = MAKE.normal(32)
    expected = theirs(x, gate.view(6, 4, 32)).flatten(1)
    torch.testing.assert_close(gated_rms_norm.definition(x, gate, theirs.weight.data, 1e-6, "silu"), expected)
