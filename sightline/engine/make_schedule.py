"""The schedule of an engine: its limits from the settings, its caches as large as the memory plan says."""

from sightline.cache.embeddings import EmbeddingCache
from sightline.cache.pages import PageCache
from sightline.config import EngineConfig
from sightline.schedule.pace import Pace
from sightline.schedule.snapshots import StateSlotPool
from sightline.schedule.state import Limits, Schedule
from sightline.worker.memory import BLOCK_ROWS, MemoryPlan


def make_schedule(config: EngineConfig, memory: MemoryPlan, on_gpu: bool) -> Schedule:
    states = None
    if memory.state_slots:
        first = config.max_num_seqs + 1  # behind those of running sequences and the one for scratch
        states = StateSlotPool(list(range(memory.state_slots - 1, first - 1, -1)), config.page_size, memory.state_bytes)
        limit, release = len(states.free) * memory.state_bytes, lambda slot: states.free.append(slot)
        pages = PageCache(memory.pages, config.page_size, limit, release)
    else:
        pages = PageCache(memory.pages, config.page_size)
    return Schedule(
        limits=Limits(
            max_sequences=config.max_num_seqs,
            max_tokens=config.max_num_batched_tokens,
            max_patches=config.max_patches_per_step,
            lookahead_patches=config.lookahead_patches,
            starvation_steps=config.starvation_steps,
            async_encode=on_gpu if config.async_encode is None else config.async_encode,
        ),
        pages=pages,
        embeddings=EmbeddingCache(memory.blocks, BLOCK_ROWS, memory.row_bytes, memory.host_bytes),
        pace=Pace(config.target_itl_ms / 1000) if config.target_itl_ms else None,
        states=states,
    )
