"""What layers keep of sequences between steps, by kind: pages of keys and values or of latents, slots of states."""

from collections.abc import Iterator, Sequence

import torch

from sightline.models.inputs import LayerCache, StateCache
from sightline.ops.latent_cache import LatentCache, empty_latent_cache
from sightline.ops.paged_cache import PagedCache, empty_cache
from sightline.spec import CacheSpec, LatentCacheSpec, LayerSpec, PagedCacheSpec


def allocate_caches(
    layers: Sequence[LayerSpec],
    pages: int,
    page_size: int,
    state_slots: int,
    device: torch.device,
    dtype: torch.dtype,
    quantised: bool = False,
) -> list[LayerCache]:
    """One per layer. Not cleared: pages are written before they are read, and a sequence begins with a state of zeros."""

    def allocate(spec: CacheSpec) -> LayerCache:
        if isinstance(spec, PagedCacheSpec):
            return empty_cache(pages, page_size, spec.num_kv_heads, spec.head_dim, device, dtype, quantised)
        if isinstance(spec, LatentCacheSpec):
            return empty_latent_cache(pages, page_size, spec.rank, spec.rope_dim, device, dtype, quantised)
        kinds = [(tensor.shape, torch.float32 if tensor.dtype == "float32" else dtype) for tensor in spec.tensors]
        return StateCache(tuple(torch.empty(state_slots, *shape, device=device, dtype=kind) for shape, kind in kinds))

    return [allocate(layer.mixer.cache) for layer in layers]


def tensors_of(caches: Sequence[LayerCache]) -> Iterator[torch.Tensor]:
    for cache in caches:
        yield from cache.tensors


def first_paged(caches: Sequence[LayerCache]) -> PagedCache | None:
    return next((cache for cache in caches if isinstance(cache, PagedCache)), None)


def paged_tensors(caches: Sequence[LayerCache]) -> list[list[torch.Tensor]]:
    """Those of one shape together: keys and values of all layers, or latents, and their scales where there are any."""
    paged = [cache for cache in caches if isinstance(cache, PagedCache)]
    kept = [tensor for cache in paged for tensor in (cache.keys, cache.values)]
    scales = [tensor for cache in paged for tensor in cache.tensors[2:]]
    compressed = [cache for cache in caches if isinstance(cache, LatentCache)]
    latents = [cache.latents for cache in compressed]
    latent_scales = [cache.scales for cache in compressed if cache.scales is not None]
    return [tensors for tensors in (kept, scales, latents, latent_scales) if tensors]


def copy_states(caches: Sequence[LayerCache], sources: torch.Tensor, targets: torch.Tensor) -> None:
    """The states in slots `sources` [n] int64 go to `targets` [n]; no slot is both."""
    for cache in caches:
        if isinstance(cache, StateCache):
            for tensor in cache.tensors:
                tensor.index_copy_(0, targets, tensor.index_select(0, sources))
