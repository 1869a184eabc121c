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


def _rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    low, high = x.chunk(2, -1)
    return (x * cos + torch.cat((-high, low), -1) * sin).to(x.dtype)


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
    hidden = F.linear(pixels, weight.flatten(1), visual.patch_embed.proj.bias)
    hidden = hidden + (visual.pos_embed(taps) * weights[:, :, None]).sum(1)
    cos, sin = cos[None, None], sin[None, None]
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


def hidden_states(
    model: Any, pixels: torch.Tensor, token_ids: torch.Tensor, positions: torch.Tensor, layout: Layout
) -> tuple[torch.Tensor, torch.Tensor]:
    """What the head reads, [batch, tokens, hidden], and the tower's last hidden state [batch * frames, patches, size].

    Logits are left to the caller, who needs them at a few tokens only. pixels [batch * frames, patches, width], token_ids
    [batch, tokens], positions [3, tokens].
    """
    batch = token_ids.shape[0]
    rows, deepstack, hidden = tower(model.model.visual, pixels, layout.grid)
    text = model.model.language_model
    x = text.embed_tokens(token_ids)
    rows = rows.view(batch, -1, rows.shape[-1])
    taps = [tap.view(batch, -1, tap.shape[-1]) for tap in deepstack]

    def at_spans(source: torch.Tensor) -> torch.Tensor:
        """Rows at their tokens, zeros elsewhere."""
        parts, done, row = [], 0, 0
        for start, count in layout.spans:
            parts += [source.new_zeros(batch, start - done, source.shape[-1]), source[:, row : row + count]]
            done, row = start + count, row + count
        parts.append(source.new_zeros(batch, token_ids.shape[1] - done, source.shape[-1]))
        return torch.cat(parts, 1)

    vision = torch.zeros(token_ids.shape[1], dtype=torch.bool)
    for start, count in layout.spans:
        vision[start : start + count] = True
    x = torch.where(vision.to(x.device)[None, :, None], at_spans(rows).to(x.dtype), x)
    embeddings = text.rotary_emb(x, positions[:, None].expand(3, batch, -1))
    for index, layer in enumerate(text.layers):
        x = layer(x, attention_mask=None, position_embeddings=embeddings)
        if index < len(taps):
            x = x + at_spans(taps[index]).to(x.dtype)
    return text.norm(x), hidden
