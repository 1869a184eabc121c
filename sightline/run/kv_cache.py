"""Pages of keys and values, and the tables that say which sequence holds which."""

import torch

from sightline.models.inputs import LayerCache
from sightline.spec import TextSpec


def allocate_pages(spec: TextSpec, pages: int, page_size: int, device: torch.device, dtype: torch.dtype) -> list[LayerCache]:
    """One pair of [pages, page_size, kv_heads, head_dim] per layer. Not cleared: slots are written before they are read."""
    shape = (pages, page_size, spec.num_kv_heads, spec.head_dim)
    return [
        LayerCache(torch.empty(shape, device=device, dtype=dtype), torch.empty(shape, device=device, dtype=dtype))
        for _ in range(spec.num_layers)
    ]
