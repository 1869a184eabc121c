"""The gated delta rule: a recurrent layer whose state is a matrix per head, which each token fades and corrects.

    S <- e^g S;   S <- S + k (beta (v - S^T k))^T;   o = S^T q

Token by token it is those three lines. A prompt goes through in chunks of 64 tokens, counted from the first new one: what the
tokens of a chunk do to each other is solved as a triangular system, for all chunks at once, and only what they do to the state
is left to a chain over the chunks. In exact arithmetic both are the same; a prompt that is cut at a multiple of 64 goes through
the very same chunks.

    c_i = g_1 + … + g_i;  D_ij = e^(c_i - c_j), i >= j;  A = strict lower part of (beta K K^T) * D
    U = (I + A)^-1 (beta V);  W = (I + A)^-1 (beta e^c K)
    V' = U - W S;  O = (e^c Q) S + (lower part of (Q K^T) * D) V';  S <- e^(c_64) S + (e^(c_64 - c) K)^T V'
"""

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F

from sightline.ops.causal_conv import new_sequences
from sightline.ops.dispatch import ExampleMaker, Tolerance, op
from sightline.ops.sequences import PagedSequences, StateIndices

CHUNK = 64  # tokens
_EPS = 1e-6  # of the length of queries and keys, squared


def _examples(make: ExampleMaker) -> Iterator[dict[str, Any]]:
    cases = (
        # key heads, value heads, key dim, value dim, new tokens of each sequence, whether each begins
        (2, 4, 16, 32, (1, 1, 1), (False, True, False)),
        (1, 3, 32, 16, (1,), (False,)),
        (2, 4, 16, 32, (64, 1, 131), (True, False, False)),
        (1, 2, 64, 64, (130, 2), (True, False)),
        (2, 2, 16, 16, (3, 1, 63), (False, True, True)),
        (1, 2, 128, 128, (70,), (False,)),
    )
    for key_heads, value_heads, key_dim, value_dim, lengths, fresh in cases:
        sequences, states = new_sequences(make, lengths, fresh, 6)
        tokens = sum(lengths)
        gates = make.normal(tokens, 2 * value_heads)
        yield {
            "qkv": make.normal(tokens, 2 * key_heads * key_dim + value_heads * value_dim),
            "b": gates[:, :value_heads],
            "a": gates[:, value_heads:],
            "a_log": make.normal(value_heads, dtype=torch.float32) - 3,  # fades over some 20 tokens
            "dt_bias": make.normal(value_heads, dtype=torch.float32),
            "kept": make.normal(6, value_heads, key_dim, value_dim, dtype=torch.float32),
            "sequences": sequences,
            "states": states,
        }


@op(examples=_examples, tolerances={torch.float32: Tolerance(2e-5, 2e-5), torch.bfloat16: Tolerance(2e-2, 2e-2)})
def gated_delta_rule(
    qkv: torch.Tensor,
    b: torch.Tensor,
    a: torch.Tensor,
    a_log: torch.Tensor,
    dt_bias: torch.Tensor,
    kept: torch.Tensor,
    sequences: PagedSequences,
    states: StateIndices,
) -> torch.Tensor:
    """Returns [tokens, value_heads, value_dim]; states of sequences are those after their last tokens then. float32 inside.

    qkv [tokens, 2 * key_heads * key_dim + value_heads * value_dim]: all queries, all keys, all values; a key head serves
    value_heads / key_heads value heads, neighbours. Queries and keys are normalised to length 1, and scores scaled by
    key_dim^-0.5. b and a [tokens, value_heads], possibly strided views: beta = sigmoid(b), rounded to b's dtype, and
    g = -exp(a_log) * softplus(a + dt_bias), a_log and dt_bias [value_heads] float32.
    kept [slots, value_heads, key_dim, value_dim] float32.
    """
    value_heads, key_dim, value_dim = kept.shape[1:]
    q, k, v = split_heads(qkv, value_heads, key_dim, value_dim)
    beta, g = b.sigmoid().float().T, (-a_log.exp() * F.softplus(a.float() + dt_bias)).T
    out = torch.empty(qkv.shape[0], value_heads, value_dim, dtype=qkv.dtype, device=qkv.device)
    start = 0
    for number, length in enumerate(sequences.query_lengths_host):
        slot, part = states.slots[number], slice(start, start + length)
        state = torch.where(states.fresh[number], torch.zeros_like(kept[0]), kept[slot])
        rule = delta_rule_tokens if length == 1 else delta_rule_chunks
        found, kept[slot] = rule(q[:, part], k[:, part], v[:, part], g[:, part], beta[:, part], state)
        out[part] = found.transpose(0, 1)
        start += length
    return out


def split_heads(
    qkv: torch.Tensor, value_heads: int, key_dim: int, value_dim: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Queries (normalised and scaled), keys (normalised) and values of each value head, [value_heads, tokens, dim] float32."""
    values = value_heads * value_dim
    keys = (qkv.shape[1] - values) // 2
    q, k, v = (part.float() for part in qkv.split([keys, keys, values], dim=1))
    q, k = (part.unflatten(1, (-1, key_dim)) for part in (q, k))
    q, k = (part * torch.rsqrt(part.square().sum(-1, keepdim=True) + _EPS) for part in (q, k))
    q, k = (part.repeat_interleave(value_heads // part.shape[1], 1).transpose(0, 1) for part in (q * key_dim**-0.5, k))
    return q, k, v.unflatten(1, (-1, value_dim)).transpose(0, 1)


def delta_rule_tokens(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, beta: torch.Tensor, state: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """(what the heads give [heads, tokens, value_dim], the state afterwards): token by token.

    q and k [heads, tokens, key_dim], v [heads, tokens, value_dim], g and beta [heads, tokens],
    state [heads, key_dim, value_dim].
    """
    found = []
    for token in range(q.shape[1]):
        state = state * g[:, token, None, None].exp()
        seen = (state * k[:, token, :, None]).sum(1)
        correction = beta[:, token, None] * (v[:, token] - seen)
        state = state + k[:, token, :, None] * correction[:, None]
        found.append((state * q[:, token, :, None]).sum(1))
    return torch.stack(found, 1), state


def delta_rule_chunks(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, beta: torch.Tensor, state: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same, in chunks of 64 tokens. Tokens that fill the last one up have beta and g of 0: they leave the state alone."""
    tokens = q.shape[1]
    fill = -tokens % CHUNK
    q, k, v = (F.pad(x, (0, 0, 0, fill)).unflatten(1, (-1, CHUNK)) for x in (q, k, v))  # [heads, chunks, 64, dim]
    g, beta = (F.pad(x, (0, fill)).unflatten(1, (-1, CHUNK)) for x in (g, beta))
    faded = g.cumsum(2)
    later = torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=q.device).triu(1)
    fades = (faded[..., None] - faded[..., None, :]).masked_fill(later, float("-inf")).exp()  # masked before, or e^c overflows
    k_beta, v_beta = k * beta[..., None], v * beta[..., None]
    system = (k_beta @ k.mT) * fades
    right = torch.cat((v_beta, k_beta * faded[..., None].exp()), 3)
    solved = torch.linalg.solve_triangular(system, right, upper=False, unitriangular=True)
    u, w = solved.split([v.shape[3], k.shape[3]], 3)
    within = (q @ k.mT) * fades
    q_faded = q * faded[..., None].exp()
    k_left = k * (faded[..., -1:] - faded)[..., None].exp()
    whole = faded[..., -1].exp()
    found = torch.empty_like(v)
    for chunk in range(v.shape[1]):
        new = u[:, chunk] - w[:, chunk] @ state
        found[:, chunk] = q_faded[:, chunk] @ state + within[:, chunk] @ new
        state = whole[:, chunk, None, None] * state + k_left[:, chunk].mT @ new
    return found.flatten(1, 2)[:, :tokens], state
