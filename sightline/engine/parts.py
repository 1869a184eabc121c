"""What an engine is made of: memory divided, the schedule over it, the runner with its graphs."""

from sightline.cache.embeddings import EmbeddingCache
from sightline.cache.pages import PageCache
from sightline.config import EngineConfig
from sightline.engine.activation_peak import graph_sizes, room_to_gather
from sightline.engine.memory import BLOCK_ROWS, MemoryPlan, plan_memory
from sightline.errors import ConfigError
from sightline.models.model import VisionLanguageModel
from sightline.ops.capture import capture_cuda_graphs
from sightline.run.kv_cache import allocate_pages
from sightline.run.runner import Runner, choose_decode_threads
from sightline.run.step_graphs import StepGraphs, step_graphs_are_possible
from sightline.schedule.state import Limits, Schedule
from sightline.spec import ProcessorSpec
from sightline.vision.arena import EmbeddingArena
from sightline.vision.gpu_decode import choose_gpu_decoder
from sightline.vision.graphs import TowerGraphs, graphs_are_possible


def make_parts(
    model: VisionLanguageModel, processor: ProcessorSpec, config: EngineConfig, max_model_len: int, max_image_pixels: int
) -> tuple[MemoryPlan, Schedule, Runner]:
    weight = model.text.embed_tokens.weight
    device, dtype = weight.device, weight.dtype
    records_tower = _graphs_on("tower_graphs", config.tower_graphs, graphs_are_possible(model.vision))
    records_steps = _graphs_on("step_graphs", config.step_graphs, step_graphs_are_possible(model, config.page_size))
    graphs = graph_sizes(config, model.spec.vision, records_tower, records_steps)
    memory = plan_memory(config, model, processor, max_model_len, max_image_pixels, graphs)
    schedule = _make_schedule(config, memory, on_gpu=weight.is_cuda)
    caches = allocate_pages(model.spec.text, memory.pages, config.page_size, device, dtype)
    arena = EmbeddingArena(memory.blocks, BLOCK_ROWS, model.spec.vision.row_width, device, dtype)
    room = room_to_gather(config, max_model_len)
    if memory.peaks is not None and memory.peaks.room > 0:
        room.take(0, caches[0].keys, caches[0].values)  # now, so that no request takes more memory than the one before
    threads, limits = choose_decode_threads(config.decode_threads), schedule.limits
    tower_graphs = step_graphs = None
    if records_tower:
        tower_graphs = TowerGraphs(model.vision, capture_cuda_graphs(device))
    if records_steps:
        capture = capture_cuda_graphs(device)
        step_graphs = StepGraphs(model, caches, arena.rows, capture, limits.max_sequences, limits.max_tokens, max_model_len)
    runner = Runner(
        model,
        processor,
        caches,
        arena,
        schedule.embeddings,
        threads,
        compact_patches=config.compact_patches,
        tower_graphs=tower_graphs,
        step_graphs=step_graphs,
        gpu_decoder=choose_gpu_decoder(config.image_decoder, device, threads),
        most_patches=config.max_patches_per_step,
        room=room,
    )
    return memory, schedule, runner


def _make_schedule(config: EngineConfig, memory: MemoryPlan, on_gpu: bool) -> Schedule:
    return Schedule(
        limits=Limits(
            max_sequences=config.max_num_seqs,
            max_tokens=config.max_num_batched_tokens,
            max_patches=config.max_patches_per_step,
            lookahead_patches=config.lookahead_patches,
            starvation_steps=config.starvation_steps,
            encode_aside=on_gpu if config.encode_aside is None else config.encode_aside,
        ),
        pages=PageCache(memory.pages, config.page_size),
        embeddings=EmbeddingCache(memory.blocks, BLOCK_ROWS, memory.row_bytes, memory.host_bytes),
    )


def _graphs_on(name: str, wanted: bool | None, possible: bool) -> bool:
    if wanted and not possible:
        raise ConfigError(f"{name} is on, but attention here is not flash-attn-4 on a GPU, which graphs need.")
    return possible if wanted is None else wanted
