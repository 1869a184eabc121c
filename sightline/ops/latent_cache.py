"""What compressed attention keeps of one layer, in pages: a latent per token, and behind it the rotated part of its keys.

With 8-bit floats each of the two has a scale per token, with which its largest number becomes 448 (see ops/paged_cache.py).
"""

from dataclasses import dataclass

import torch

from sightline.ops.fp8 import FP8, quantise_rows
from sightline.ops.paged_cache import SCALE, as_bytes


@dataclass(frozen=True)
class LatentCache:
    """A flat slot is page * page_size + offset."""

    latents: torch.Tensor  # [pages, page_size, rank + rope_dim]
    rank: int
    scales: torch.Tensor | None = None  # [pages, page_size, 2] float32: of latent and rotated part, with 8-bit floats alone

    @property
    def page_size(self) -> int:
        return self.latents.shape[1]

    @property
    def quantised(self) -> bool:
        return self.scales is not None

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        return (self.latents,) if self.scales is None else (self.latents, self.scales)

    def store(self, latents: torch.Tensor, rotated: torch.Tensor, slots: torch.Tensor) -> None:
        """latents [tokens, rank], rotated [tokens, rope_dim], slots [tokens] int64, distinct."""
        if self.scales is None:
            self.latents.flatten(0, 1)[slots] = torch.cat((latents, rotated), 1)
            return
        stored, scales = zip(*(quantise_rows.definition(part, part.shape[1]) for part in (latents, rotated)), strict=True)
        as_bytes(self.latents).flatten(0, 1)[slots] = torch.cat([as_bytes(part) for part in stored], 1)
        self.scales.flatten(0, 1)[slots] = torch.cat([scale.view(-1, 1) for scale in scales], 1)

    def read(self, pages: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Of these pages in order, [tokens, rank + rope_dim]."""
        if self.scales is None:
            return self.latents[pages].flatten(0, 1)
        stored = as_bytes(self.latents)[pages].view(FP8).flatten(0, 1).float()
        scales = self.scales[pages].flatten(0, 1)
        sizes = torch.tensor([self.rank, stored.shape[1] - self.rank], device=scales.device)
        return (stored * scales.repeat_interleave(sizes, 1, output_size=stored.shape[1])).to(dtype)


def empty_latent_cache(
    pages: int, page_size: int, rank: int, rope_dim: int, device: torch.device, dtype: torch.dtype, quantised: bool
) -> LatentCache:
    """`dtype`: the model's. Not cleared: pages are written before they are read."""
    latents = torch.empty(pages, page_size, rank + rope_dim, device=device, dtype=FP8 if quantised else dtype)
    scales = torch.empty(pages, page_size, 2, device=device, dtype=SCALE) if quantised else None
    return LatentCache(latents, rank, scales)


def quantised_latents(cache: LatentCache) -> LatentCache:
    """The same in 8-bit floats."""
    pages, page_size, size = cache.latents.shape
    made = empty_latent_cache(pages, page_size, cache.rank, size - cache.rank, cache.latents.device, SCALE, quantised=True)
    rows = cache.latents.flatten(0, 1)
    made.store(rows[:, : cache.rank], rows[:, cache.rank :], torch.arange(len(rows), device=rows.device))
    return made
