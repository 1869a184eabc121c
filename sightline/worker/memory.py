"""The memory plan: what weights, steps and graphs leave goes to pages of keys and values.

    total of the GPU
    |<-------------------------- gpu_memory_utilization ------------------------->|
    | weights, workspaces | others | arena | steps at their peak | graphs | margin |  pages …  |   left alone   |

On a CPU memory is not the engine's to divide: pages and arena have fixed sizes, and steps take what they need.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from sightline.config import EngineConfig
from sightline.encoder.graphs import MOST_PATCHES, PATCHES_MULTIPLE
from sightline.errors import ConfigError
from sightline.models.model import VisionLanguageModel
from sightline.spec import ModelSpec, ProcessorSpec
from sightline.worker.activation_peak import GraphSizes, Peaks, fewer_pixels, measure_peaks
from sightline.worker.workspaces import Workspaces

BLOCK_ROWS = 64
_GB = 1024**3
_CPU_KV_BYTES = _GB
_CPU_ARENA_GB, _GPU_ARENA_GB = 0.5, 4.0
_CPU_STATES_GB, _GPU_STATES_GB = 0.25, 8.0
# Kernels that are loaded later (a cuBLAS module is tens of MiB), scratch of libraries on further streams, and gaps that torch's
# allocator leaves when steps of other shapes alternate.
MARGIN_BYTES = 512 * 1024**2
_MOST_UTILIZATION = 0.98  # what is worth recommending: the driver needs some, too
_HIGH_UTILIZATION = 0.95  # recommended beside another change


@dataclass(frozen=True)
class MemoryPlan:
    pages: int  # the scratch page included
    page_bytes: int
    blocks: int
    row_bytes: int
    host_bytes: int
    state_slots: int = 0  # of running sequences, one for scratch, and of snapshots; 0 where no layer keeps a state
    state_bytes: int = 0  # of a slot
    peaks: Peaks | None = None  # None on a CPU, where nothing is set aside for steps
    margin: int = 0
    others: int = 0  # the GPU's memory that is not torch's: contexts, libraries, other processes
    total: int = 0  # of the GPU

    @property
    def kv_bytes(self) -> int:
        return self.pages * self.page_bytes

    @property
    def states_bytes(self) -> int:
        return self.state_slots * self.state_bytes

    @property
    def arena_bytes(self) -> int:
        return self.blocks * BLOCK_ROWS * self.row_bytes


@dataclass(frozen=True)
class DeviceMemory:
    """A GPU with the weights and workspaces on it, in bytes."""

    total: int
    taken: int  # by whomever
    others: int  # the part of it that is not torch's


def plan_memory(
    config: EngineConfig,
    model: VisionLanguageModel,
    processor: ProcessorSpec,
    longest: int,
    max_image_pixels: int,
    graphs: GraphSizes,
    workspaces: Workspaces,
) -> MemoryPlan:
    """`longest` is the most tokens a sequence may have; one such sequence must fit. Workspaces are on the device already."""
    check_limits(config)
    weight = model.text.embed_tokens.weight
    if weight.device.type != "cuda":
        return plan_on_cpu(config, model.spec, weight.dtype, longest)
    rows = _blocks(config, model.spec, weight.dtype, _GPU_ARENA_GB) * BLOCK_ROWS
    peaks = measure_peaks(model, processor, config, longest, min(rows, longest), max_image_pixels, graphs, workspaces)
    smaller_sources = functools.partial(fewer_pixels, processor, max_image_pixels)
    return plan_on_gpu(config, model.spec, weight.dtype, longest, _look_at(weight.device), peaks, smaller_sources)


def check_limits(config: EngineConfig) -> None:
    for name in ("page_size", "max_num_seqs", "max_num_batched_tokens", "max_patches_per_step", "starvation_steps"):
        value = getattr(config, name)
        if value < 1:
            raise ConfigError(f"{name} is {value}, but must be at least 1.")
    largest = config.max_tower_graph_patches
    if not PATCHES_MULTIPLE <= largest <= MOST_PATCHES:
        raise ConfigError(f"max_tower_graph_patches is {largest}, but must be from {PATCHES_MULTIPLE} to {MOST_PATCHES}.")
    if config.embedding_cache_gb == 0 and config.embedding_host_cache_gb:
        raise ConfigError(
            f"embedding_host_cache_gb is {config.embedding_host_cache_gb}, but embedding_cache_gb is 0, which keeps nothing."
        )
    if not 0 < config.gpu_memory_utilization <= 1:
        raise ConfigError(f"gpu_memory_utilization is {config.gpu_memory_utilization}, but must be above 0 and at most 1.")


def _look_at(device: torch.device) -> DeviceMemory:
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(device)
    return DeviceMemory(total, total - free, max(0, total - free - torch.cuda.memory_reserved(device)))


def plan_on_cpu(config: EngineConfig, spec: ModelSpec, dtype: torch.dtype, longest: int) -> MemoryPlan:
    page_bytes, needed = _page_bytes(config, spec, dtype), _pages_for(config, longest)
    blocks = _blocks(config, spec, dtype, _CPU_ARENA_GB)
    if config.kv_cache_gb is None:
        pages = max(_CPU_KV_BYTES // page_bytes, needed)
    else:
        pages = int(config.kv_cache_gb * _GB) // page_bytes
        _refuse_small_cache(config, pages, page_bytes, longest)
    slots, state_bytes = _state_slots(config, spec, dtype, _CPU_STATES_GB)
    host = int(config.embedding_host_cache_gb * _GB)
    return MemoryPlan(pages, page_bytes, blocks, _row_bytes(spec, dtype), host, slots, state_bytes)


def plan_on_gpu(
    config: EngineConfig,
    spec: ModelSpec,
    dtype: torch.dtype,
    longest: int,
    device: DeviceMemory,
    peaks: Peaks,
    smaller_sources: Callable[[int], int | None] = lambda saving: None,
) -> MemoryPlan:
    """`smaller_sources` knows a max_image_pixels that saves so many bytes, if there is one."""
    page_bytes, row_bytes = _page_bytes(config, spec, dtype), _row_bytes(spec, dtype)
    blocks = _blocks(config, spec, dtype, _GPU_ARENA_GB)
    arena = blocks * BLOCK_ROWS * row_bytes
    slots, state_bytes = _state_slots(config, spec, dtype, _GPU_STATES_GB)
    before_pages = device.taken + arena + slots * state_bytes + peaks.activations + peaks.graphs + MARGIN_BYTES
    room = int(device.total * config.gpu_memory_utilization) - before_pages
    if config.kv_cache_gb is None:
        pages, least = max(0, room) // page_bytes, _pages_for(config, longest)
    else:
        pages = least = int(config.kv_cache_gb * _GB) // page_bytes
        _refuse_small_cache(config, pages, page_bytes, longest)
    shortage = least * page_bytes - room
    if shortage > 0:
        states, less = (slots, state_bytes), smaller_sources(shortage)
        raise ConfigError(_advice(config, longest, device, peaks, arena, states, pages, page_bytes, shortage, less))
    host = int(config.embedding_host_cache_gb * _GB)
    return MemoryPlan(
        pages, page_bytes, blocks, row_bytes, host, slots, state_bytes, peaks, MARGIN_BYTES, device.others, device.total
    )


def _page_bytes(config: EngineConfig, spec: ModelSpec, dtype: torch.dtype) -> int:
    return config.page_size * spec.text.token_bytes(dtype.itemsize, config.quantised_cache)


def _state_slots(config: EngineConfig, spec: ModelSpec, dtype: torch.dtype, default_gb: float) -> tuple[int, int]:
    """How many states are kept, and the bytes of each: of every running sequence, one for scratch, and snapshots."""
    state_bytes = spec.text.state_bytes(dtype.itemsize)
    if not state_bytes:
        return 0, 0
    gigabytes = default_gb if config.state_cache_gb is None else config.state_cache_gb
    return config.max_num_seqs + 1 + int(gigabytes * _GB) // state_bytes, state_bytes


def _row_bytes(spec: ModelSpec, dtype: torch.dtype) -> int:
    return spec.vision.embedding_width * dtype.itemsize


def _blocks(config: EngineConfig, spec: ModelSpec, dtype: torch.dtype, default_gb: float) -> int:
    gigabytes, row_bytes = config.embedding_cache_gb, _row_bytes(spec, dtype)
    if not gigabytes:  # 0: nothing is kept for later, but running requests need as much as by default
        gigabytes = default_gb
    blocks = int(gigabytes * _GB) // (BLOCK_ROWS * row_bytes)
    if blocks < 1:
        raise ConfigError(f"embedding_cache_gb is {gigabytes}, too little for {BLOCK_ROWS} rows of {row_bytes} bytes each.")
    return blocks


def _pages_for(config: EngineConfig, tokens: int) -> int:
    return -(-tokens // config.page_size) + 1  # and the scratch page


def _refuse_small_cache(config: EngineConfig, pages: int, page_bytes: int, longest: int) -> None:
    """A size that the user gave, and that holds no sequence of full length."""
    needed = _pages_for(config, longest)
    if pages < needed:
        tokens = max(0, pages - 1) * config.page_size
        lower = f" or lower max_model_len to {tokens}" if tokens > 1 else ""
        raise ConfigError(
            f"kv_cache_gb is {config.kv_cache_gb}, room for {tokens} tokens, but a sequence may have {longest}; "
            f"raise kv_cache_gb to {_rounded_up(needed * page_bytes / _GB, 3)}{lower}."
        )


def _advice(
    config: EngineConfig,
    longest: int,
    device: DeviceMemory,
    peaks: Peaks,
    arena: int,
    states: tuple[int, int],  # slots, and the bytes of each
    pages: int,
    page_bytes: int,
    shortage: int,
    max_image_pixels: int | None,
) -> str:
    """Why the plan does not fit, and each single change that would make it fit."""
    ways = []
    utilization = _rounded_up((device.total * config.gpu_memory_utilization + shortage) / device.total, 2)
    if utilization <= _MOST_UTILIZATION:
        ways.append(f"raise gpu_memory_utilization to {utilization}")
    if config.kv_cache_gb is not None:
        left = (config.kv_cache_gb * _GB - shortage) / _GB
        if left * _GB >= _pages_for(config, longest) * page_bytes:
            ways.append(f"lower kv_cache_gb to {math.floor(left * 100) / 100}")
    elif pages > 2:
        way = f"lower max_model_len to {(pages - 1) * config.page_size}"
        if utilization > _MOST_UTILIZATION and config.gpu_memory_utilization < _HIGH_UTILIZATION:
            more = int(device.total * (_HIGH_UTILIZATION - config.gpu_memory_utilization)) // page_bytes
            way += f" (with gpu_memory_utilization {_HIGH_UTILIZATION} {(pages + more - 1) * config.page_size} fit)"
        ways.append(way)
    # A step's memory grows with its tokens, the tower's with its patches.
    tokens = config.max_num_batched_tokens - _share(config.max_num_batched_tokens, shortage, peaks.language)
    if tokens >= 256:
        ways.append(f"lower max_num_batched_tokens to {tokens // 64 * 64}")
    patches = config.max_patches_per_step - _share(config.max_patches_per_step, shortage, peaks.tower)
    if patches >= 4096:
        ways.append(f"lower max_patches_per_step and max_pixels so that a step has {patches // 64 * 64} patches")
    if max_image_pixels is not None:
        ways.append(f"lower max_image_pixels to {max_image_pixels}")
    if arena - shortage >= _GB // 4:
        ways.append(f"lower embedding_cache_gb to {math.floor((arena - shortage) / _GB * 100) / 100}")
    ways += _smaller_states(config, *states, shortage)
    fits = "; ".join(("", *ways[:1])) + "".join(f", or {way}" for way in ways[1:])
    asked = f"a cache of {config.kv_cache_gb} GB" if config.kv_cache_gb is not None else f"a sequence of {longest:,} tokens"
    return (
        f"The GPU has {device.total / _GB:.1f} GiB, of which gpu_memory_utilization allows {config.gpu_memory_utilization:g}; "
        f"with {device.taken / _GB:.1f} GiB taken by the weights and others, {arena / _GB:.1f} by embedding rows, "
        f"{f'{math.prod(states) / _GB:.1f} by states, ' if states[0] else ''}"
        f"{peaks.activations / _GB:.1f} by steps and {peaks.graphs / _GB:.1f} by graphs, {asked} lacks "
        f"{shortage / _GB:.2f} GiB{fits or '; the GPU is too small for this model'}."
    )


def _smaller_states(config: EngineConfig, slots: int, state_bytes: int, shortage: int) -> list[str]:
    """Fewer snapshots, or fewer running sequences, of which each has a state."""
    if not slots:
        return []
    fewer = -(-shortage // state_bytes)
    snapshots, ways = slots - config.max_num_seqs - 1, []
    if fewer <= snapshots:
        left = (snapshots - fewer) * state_bytes / _GB
        ways.append(f"lower state_cache_gb to {math.floor(left * 100) / 100}")
    if config.max_num_seqs - fewer >= 1:
        ways.append(f"lower max_num_seqs to {config.max_num_seqs - fewer}")
    return ways


def _share(limit: int, shortage: int, peak: int) -> int:
    """How much of a limit gives back `shortage`, when the whole of it takes `peak`; more than all if that is not enough."""
    return limit + 1 if shortage >= peak else math.ceil(limit * shortage / peak)


def _rounded_up(value: float, digits: int) -> float:
    scale: int = 10**digits
    return math.ceil(value * scale) / scale
