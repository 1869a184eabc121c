"""The slow, obvious way: a whole sequence at once, without caches, chunks, pages or our modules; weights by their names."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from sightline.spec import AttentionSpec, TextSpec
from sightline.types import Request

Weights = dict[str, torch.Tensor]
Mix = Callable[[Any, Weights, torch.Tensor], torch.Tensor]  # (spec, weights of the layer's part, x [tokens, size])


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def rotate(x: torch.Tensor, positions: torch.Tensor, spec: AttentionSpec) -> torch.Tensor:
    """x [tokens, heads, dim]; the axes of positions [3, tokens] take turns over the frequencies: t h w t h w …, then t."""
    rope = spec.rope
    assert rope.layout == "interleaved" and rope.pairing == "halves" and rope.rotary_dim == spec.head_dim
    half = spec.head_dim // 2
    angles = torch.empty(x.shape[0], half)
    for frequency in range(half):
        axis = frequency % 3
        if axis and frequency >= 3 * rope.sections[axis]:
            axis = 0
        angles[:, frequency] = positions[axis] * rope.theta ** (-frequency / half)
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]
    first, second = x[..., :half], x[..., half:]
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


def attention(spec: AttentionSpec, weights: Weights, x: torch.Tensor, positions: torch.Tensor, eps: float) -> torch.Tensor:
    tokens = x.shape[0]
    qkv = (x @ weights["qkv.weight"].T).view(tokens, -1, spec.head_dim)
    q, k, v = qkv.split((spec.num_heads, spec.num_kv_heads, spec.num_kv_heads), dim=1)
    q = rotate(rms_norm(q, weights["q_norm.weight"], eps), positions, spec)
    k = rotate(rms_norm(k, weights["k_norm.weight"], eps), positions, spec)
    k, v = (part.repeat_interleave(spec.num_heads // spec.num_kv_heads, 1) for part in (k, v))
    scores = torch.einsum("ihd,jhd->hij", q, k) / spec.head_dim**0.5
    scores = scores.masked_fill(torch.ones(tokens, tokens).triu(1).bool(), float("-inf"))
    return torch.einsum("hij,jhd->ihd", scores.softmax(-1), v).flatten(1) @ weights["out.weight"].T


def gated_mlp(spec: Any, weights: Weights, x: torch.Tensor) -> torch.Tensor:
    gate, up = (x @ weights["gate_up.weight"].T).chunk(2, -1)
    return (F.silu(gate) * up) @ weights["down.weight"].T


def logits(
    spec: TextSpec,
    weights: Weights,
    hidden: torch.Tensor,
    positions: torch.Tensor,
    mixers: dict[type, Mix],
    mlps: dict[type, Mix],
) -> torch.Tensor:
    """After every token, [tokens, vocab]. hidden [tokens, size] float32, positions [3, tokens]."""
    for number, layer in enumerate(spec.layers):
        own = part_of(weights, f"layers.{number}.")
        x = rms_norm(hidden, own["input_norm.weight"], spec.norm_eps)
        mixer = part_of(own, "mixer.")
        if isinstance(layer.mixer, AttentionSpec):
            hidden = hidden + attention(layer.mixer, mixer, x, positions, spec.norm_eps)
        else:
            hidden = hidden + mixers[type(layer.mixer)](layer.mixer, mixer, x)
        x = rms_norm(hidden, own["mlp_norm.weight"], spec.norm_eps)
        hidden = hidden + mlps.get(type(layer.mlp), gated_mlp)(layer.mlp, part_of(own, "mlp."), x)
    return rms_norm(hidden, weights["norm.weight"], spec.norm_eps) @ weights["lm_head.weight"].T


def part_of(weights: Weights, prefix: str) -> Weights:
    return {name.removeprefix(prefix): weight for name, weight in weights.items() if name.startswith(prefix)}


def greedy(
    spec: TextSpec,
    weights: Weights,
    request: Request,
    rows: torch.Tensor,  # embeddings of the request's items, one after another
    count: int,
    mixers: dict[type, Mix],
    mlps: dict[type, Mix],
) -> list[int]:
    """The likeliest token after the request, and after each that follows: everything is computed anew for each of them."""
    first_row = np.cumsum([0, *(item.rows for item in request.items)])
    ids, found = request.token_ids.tolist(), []
    for _ in range(count):
        hidden = weights["embed_tokens.weight"][torch.tensor(ids + found)]
        for span in request.spans:
            row = int(first_row[span.item]) + span.row
            hidden[span.start : span.start + span.count] = rows[row : row + span.count]
        more = np.arange(len(ids), len(ids) + len(found), dtype=np.int32) + request.position_delta
        positions = np.concatenate((request.positions, np.broadcast_to(more, (3, len(found)))), axis=1)
        after = logits(spec, weights, hidden, torch.from_numpy(positions).float(), mixers, mlps)
        found.append(int(after[-1].argmax()))
    return found
