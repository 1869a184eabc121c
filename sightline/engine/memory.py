"""How many pages and row blocks the configured memory gives."""

from dataclasses import dataclass

import torch

from sightline.config import EngineConfig
from sightline.errors import ConfigError
from sightline.spec import ModelSpec

BLOCK_ROWS = 64
_GB = 1024**3
_CPU_KV_BYTES = _GB
_CPU_ARENA_GB, _GPU_ARENA_GB = 0.5, 4.0
_ACTIVATION_SHARE = 0.08  # of a GPU's memory, left free for what a step computes


@dataclass(frozen=True)
class MemoryPlan:
    pages: int  # the scratch page included
    page_bytes: int
    blocks: int
    row_bytes: int
    host_bytes: int

    @property
    def kv_bytes(self) -> int:
        return self.pages * self.page_bytes

    @property
    def arena_bytes(self) -> int:
        return self.blocks * BLOCK_ROWS * self.row_bytes


def plan_memory(config: EngineConfig, spec: ModelSpec, device: torch.device, dtype: torch.dtype, longest: int) -> MemoryPlan:
    """`longest` is the most tokens a sequence may have; one such sequence must fit."""
    for name in ("page_size", "max_num_seqs", "max_num_batched_tokens", "max_patches_per_step", "starvation_steps"):
        value = getattr(config, name)
        if value < 1:
            raise ConfigError(f"{name} is {value}, but must be at least 1.")
    text = spec.text
    page_bytes = 2 * text.num_layers * config.page_size * text.num_kv_heads * text.head_dim * dtype.itemsize
    row_bytes = spec.vision.row_width * dtype.itemsize
    arena_gb = config.embedding_cache_gb
    if arena_gb is None:
        arena_gb = _CPU_ARENA_GB if device.type == "cpu" else _GPU_ARENA_GB
    blocks = int(arena_gb * _GB) // (BLOCK_ROWS * row_bytes)
    if blocks < 1:
        raise ConfigError(f"embedding_cache_gb is {arena_gb}, too little for {BLOCK_ROWS} rows of {row_bytes} bytes each.")
    pages = _kv_bytes(config, device, blocks * BLOCK_ROWS * row_bytes) // page_bytes
    needed = -(-longest // config.page_size) + 1
    if config.kv_cache_gb is None and device.type == "cpu":
        pages = max(pages, needed)
    if pages < needed:
        raise ConfigError(
            f"The key/value cache has room for {max(0, pages - 1) * config.page_size} tokens, but a sequence may have "
            f"{longest}; raise kv_cache_gb or lower max_model_len."
        )
    return MemoryPlan(pages, page_bytes, blocks, row_bytes, int(config.embedding_host_cache_gb * _GB))


def _kv_bytes(config: EngineConfig, device: torch.device, arena_bytes: int) -> int:
    if config.kv_cache_gb is not None:
        return int(config.kv_cache_gb * _GB)
    if device.type == "cpu":
        return _CPU_KV_BYTES
    free, total = torch.cuda.mem_get_info(device)
    taken = total - free
    return max(0, int(total * (config.gpu_memory_utilization - _ACTIVATION_SHARE)) - taken - arena_bytes)
