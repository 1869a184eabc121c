"""transformers' Qwen3VL on batches whose samples all have the same layout, without its loops over images and samples.

The modules and weights are transformers' own. Only the way through them is written out: images of one size go through the
tower as one tensor, tables that depend on the grid alone are made once, and vision rows have fixed places in the prompt.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from transformers.vision_utils import get_vision_interpolation_indices_and_weights, get_vision_position_ids


@dataclass(frozen=True)
class Layout:
    """What all samples of a batch share: the grid of each item, where rows stand in the prompt, positions of the tokens."""

    grid: tuple[int, int, int]  # of each image, or of the video: temporal groups, rows, columns, in patches
    items: int  # images per sample; 1 for a video
    spans: tuple[tuple[int, int], ...]  # (first token, rows) in the order of the rows

    @property
    def frames(self) -> int:
        """Attention segments per sample."""
        return self.items * self.grid[0]


@lru_cache(maxsize=64)
def _grid_tables(
    rows: int, columns: int, merge: int, side: int, head_dim: int, theta: float, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Interpolation taps and weights, cosines and sines, of the patches of one frame."""
    grid = torch.tensor([[1, rows, columns]])
    taps, weights = get_vision_interpolation_indices_and_weights(
        grid, num_grid_per_side=side, mode="bilinear", align_corners=True, spatial_merge_size=merge
    )
    place = get_vision_position_ids(grid, merge).float()  # [patches, 2]
    frequencies = 1.0 / theta ** (torch.arange(0, head_dim // 2, 2).float() / (head_dim // 2))
    angles = (place[:, :, None] * frequencies).flatten(1)
    angles = torch.cat((angles, angles), 1)
    return taps.to(device), weights.to(device), angles.cos().to(device), angles.sin().to(device)


class _Lookup(torch.autograd.Function):
    """Rows of a table. The gradient is a matrix product: torch's own sorts indices, which no graph should depend on."""

    @staticmethod
    def forward(ctx: Any, places: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(places)
        ctx.rows = len(table)
        return F.embedding(places, table)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[None, torch.Tensor]:
        (places,) = ctx.saved_tensors
        chosen = places.flatten() == torch.arange(ctx.rows, device=places.device)[:, None]  # [rows, places]
        return None, chosen.to(gradient.dtype) @ gradient.flatten(0, -2)


def lookup(places: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    found: torch.Tensor = _Lookup.apply(places, table)
    return found


def _rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    low, high = x.chunk(2, -1)
    return x * cos + torch.cat((-high, low), -1) * sin


def tower(
    visual: Any, pixels: torch.Tensor, grid: tuple[int, int, int]
) -> tuple[torch.Tensor, list[torch.Tensor], torch.Tensor]:
    """pixels [frames, patches, channels * time * patch²] -> (rows, deepstack rows, last hidden [frames, patches, size])."""
    config = visual.config
    frames, patches, _ = pixels.shape
    head_dim = config.hidden_size // config.num_heads
    taps, weights, cos, sin = _grid_tables(
        grid[1], grid[2], config.spatial_merge_size, visual.num_grid_per_side, head_dim, 10000.0, pixels.device
    )
    weight = visual.patch_embed.proj.weight
    dtype = weight.dtype
    hidden = F.linear(pixels.to(dtype), weight.flatten(1), visual.patch_embed.proj.bias)
    hidden = hidden + (lookup(taps, visual.pos_embed.weight) * weights[:, :, None]).sum(1).to(dtype)
    cos, sin = cos[None, None].to(dtype), sin[None, None].to(dtype)
    deepstack = []
    for index, block in enumerate(visual.blocks):
        qkv = block.attn.qkv(block.norm1(hidden)).view(frames, patches, 3, config.num_heads, head_dim)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(_rotate(q, cos, sin), _rotate(k, cos, sin), v)
        hidden = hidden + block.attn.proj(attended.transpose(1, 2).flatten(2))
        hidden = hidden + block.mlp(block.norm2(hidden))
        if index in visual.deepstack_visual_indexes:
            merger = visual.deepstack_merger_list[list(visual.deepstack_visual_indexes).index(index)]
            deepstack.append(merger(hidden.flatten(0, 1)))
    return visual.merger(hidden.flatten(0, 1)), deepstack, hidden


def _norm(module: Any, x: torch.Tensor) -> torch.Tensor:
    return F.rms_norm(x, (x.shape[-1],), module.weight, module.variance_epsilon)


def _decoder_layer(layer: Any, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """x [batch, tokens, hidden]; cos and sin [tokens, head_dim]"""
    attention, mlp = layer.self_attn, layer.mlp
    batch, tokens, _ = x.shape
    heads = (batch, tokens, -1, attention.head_dim)
    normed = _norm(layer.input_layernorm, x)
    q = _norm(attention.q_norm, attention.q_proj(normed).view(heads)).transpose(1, 2)
    k = _norm(attention.k_norm, attention.k_proj(normed).view(heads)).transpose(1, 2)
    v = attention.v_proj(normed).view(heads).transpose(1, 2)
    q, k = _rotate(q, cos, sin), _rotate(k, cos, sin)
    groups = attention.num_key_value_groups
    k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    attended = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=attention.scaling)
    x = x + attention.o_proj(attended.transpose(1, 2).flatten(2))
    normed = _norm(layer.post_attention_layernorm, x)
    return x + mlp.down_proj(F.silu(mlp.gate_proj(normed)) * mlp.up_proj(normed))


def hidden_states(
    model: Any, pixels: torch.Tensor, token_ids: torch.Tensor, positions: torch.Tensor, layout: Layout
) -> tuple[torch.Tensor, torch.Tensor]:
    """What the head reads, [batch, tokens, hidden], and the tower's last hidden state [batch * frames, patches, size].

    Logits are left to the caller, who needs them at a few tokens only. pixels [batch * frames, patches, width], token_ids
    [batch, tokens], positions [3, tokens]. Nothing here waits for the device, so that it can be captured in a graph.
    """
    batch = token_ids.shape[0]
    rows, deepstack, hidden = tower(model.model.visual, pixels, layout.grid)
    text = model.model.language_model
    x = lookup(token_ids, text.embed_tokens.weight)
    rows = rows.view(batch, -1, rows.shape[-1])
    taps = [tap.view(batch, -1, tap.shape[-1]) for tap in deepstack]

    def at_spans(source: torch.Tensor, elsewhere: torch.Tensor | None) -> torch.Tensor:
        """Rows at their tokens, and what stands elsewhere: other tokens, or zeros."""
        parts, done, row = [], 0, 0
        for start, count in (*layout.spans, (token_ids.shape[1], 0)):
            if elsewhere is None:
                parts.append(source.new_zeros(batch, start - done, source.shape[-1]))
            else:
                parts.append(elsewhere[:, done:start])
            parts.append(source[:, row : row + count])
            done, row = start + count, row + count
        return torch.cat(parts, 1)

    x = at_spans(rows, x)
    cos, sin = text.rotary_emb(x, positions[:, None])
    for index, layer in enumerate(text.layers):
        x = _decoder_layer(layer, x, cos[0], sin[0])
        if index < len(taps):
            x = x + at_spans(taps[index], None)
    return _norm(text.norm, x), hidden
