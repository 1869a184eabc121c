"""Keys and values of one layer, in pages: in the model's own numbers, or in 8-bit floats with a scale per token and head.

With 8-bit floats the largest number of a token's key, in one head, becomes 448, and so with values. Whoever attends reads what
was stored, a token's own key too: answers do not depend on how a prompt was cut into chunks.
"""

from dataclasses import dataclass

import torch

from sightline.ops.fp8 import FP8, quantise_rows

SCALE = torch.float32  # of 8-bit floats


@dataclass(frozen=True)
class PagedCache:
    """A flat slot is page * page_size + offset."""

    keys: torch.Tensor  # [pages, page_size, kv_heads, head_dim]
    values: torch.Tensor
    key_scales: torch.Tensor | None = None  # [pages, page_size, kv_heads] float32, with 8-bit floats alone
    value_scales: torch.Tensor | None = None

    @property
    def quantised(self) -> bool:
        return self.key_scales is not None

    @property
    def is_contiguous(self) -> bool:
        return self.keys.is_contiguous() and self.values.is_contiguous()

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        scales = (self.key_scales, self.value_scales)
        return self.keys, self.values, *(scale for scale in scales if scale is not None)

    @property
    def scales_for_kernel(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Where there are none, something that is not read."""
        if self.key_scales is None or self.value_scales is None:
            return self.keys, self.values
        return self.key_scales, self.value_scales

    def store(self, k: torch.Tensor, v: torch.Tensor, slots: torch.Tensor) -> None:
        """Writes each token's key and value to its slot. k, v [tokens, kv_heads, head_dim], slots [tokens] int64, distinct."""
        for new, cache, scales in ((k, self.keys, self.key_scales), (v, self.values, self.value_scales)):
            if scales is None:
                cache.flatten(0, 1)[slots] = new
            else:
                stored, scale = quantise_rows.definition(new.flatten(0, 1), new.shape[2])
                as_bytes(cache).flatten(0, 1)[slots] = as_bytes(stored).view(new.shape)
                scales.flatten(0, 1)[slots] = scale.view(new.shape[:2])

    def read(self, pages: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of these pages in order, [tokens, kv_heads, head_dim] each."""
        return _read(self.keys, self.key_scales, pages, dtype), _read(self.values, self.value_scales, pages, dtype)


def empty_cache(
    pages: int, page_size: int, kv_heads: int, head_dim: int, device: torch.device, dtype: torch.dtype, quantised: bool
) -> PagedCache:
    """`dtype`: the model's. Not cleared: pages are written before they are read."""
    shape = (pages, page_size, kv_heads, head_dim)
    stored = [torch.empty(shape, device=device, dtype=FP8 if quantised else dtype) for _ in range(2)]
    scales = [torch.empty(shape[:3], device=device, dtype=SCALE) for _ in range(2)] if quantised else []
    return PagedCache(*stored, *scales)


def quantised_cache(cache: PagedCache) -> PagedCache:
    """The same keys and values in 8-bit floats."""
    slots = torch.arange(cache.keys.shape[0] * cache.keys.shape[1], device=cache.keys.device)
    pages, page_size, kv_heads, head_dim = cache.keys.shape
    made = empty_cache(pages, page_size, kv_heads, head_dim, cache.keys.device, cache.keys.dtype, quantised=True)
    made.store(cache.keys.flatten(0, 1), cache.values.flatten(0, 1), slots)
    return made


def _read(cache: torch.Tensor, scales: torch.Tensor | None, pages: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if scales is None:
        return cache[pages].flatten(0, 1)
    stored = as_bytes(cache)[pages].view(FP8).flatten(0, 1)  # torch indexes no 8-bit floats on every device
    return (stored.float() * scales[pages].flatten(0, 1)[..., None]).to(dtype)


def as_bytes(values: torch.Tensor) -> torch.Tensor:
    return values.view(torch.uint8)
