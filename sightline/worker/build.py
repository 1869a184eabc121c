"""From a loaded model to a worker: memory divided, pages, arena, graphs."""

from dataclasses import replace

import torch

from sightline.config import EngineConfig
from sightline.encoder.gpu_decode import choose_gpu_decoder
from sightline.encoder.graphs import TowerGraphs, for_graphs
from sightline.encoder.patch_maker import PatchMaker
from sightline.errors import ConfigError
from sightline.models.model import VisionLanguageModel
from sightline.ops.capture import capture_cuda_graphs
from sightline.ops.dispatch import using_backend
from sightline.processors import choose_decode_threads
from sightline.spec import ProcessorSpec
from sightline.worker.activation_peak import graph_sizes, largest_tower_graph, naming_setting
from sightline.worker.arena import EmbeddingArena
from sightline.worker.attention_backends import choose_backends
from sightline.worker.caches import allocate_caches
from sightline.worker.encodes import Encodes
from sightline.worker.memory import BLOCK_ROWS, MemoryPlan, plan_memory
from sightline.worker.penalties import PenaltyCounts
from sightline.worker.ranks import Ranks
from sightline.worker.step_graphs import StepGraphs, step_graphs_are_possible
from sightline.worker.worker import Worker
from sightline.worker.workspaces import make_workspaces


def build_worker(
    model: VisionLanguageModel,
    processor: ProcessorSpec,
    config: EngineConfig,
    max_model_len: int,
    max_image_pixels: int,
    ranks: Ranks | None = None,
) -> tuple[Worker, MemoryPlan]:
    weight = model.text.embed_tokens.weight
    device, dtype = weight.device, weight.dtype
    choose_backends(model, config)
    with using_backend(model.tower_backend):
        tower = for_graphs(model.vision)
    capturable = ranks is None or ranks.steps.graph_safe
    if ranks is not None and config.vision_parallel == "tensor" and not capturable:
        tower = None
    if not graphs_on("tower_graphs", config.tower_graphs, tower is not None):
        tower = None
    possible = capturable and step_graphs_are_possible(model, config)
    step_graphs = graphs_on("step_graphs", config.step_graphs, possible)
    graphs = graph_sizes(config, None if tower is None else tower.spec, step_graphs)
    # What is kept by slot, and what ops work in, comes before the plan, which divides what is left.
    counts = PenaltyCounts(config.max_num_seqs, model.spec.text.vocab_size, device)
    sampled = torch.zeros(config.max_num_seqs, dtype=torch.int64, device=device)
    with naming_setting("max_num_batched_tokens", config.max_num_batched_tokens):
        workspaces = make_workspaces(model, config, max_model_len)
    model.use_workspace(workspaces.split_sums)
    memory = plan_memory(config, model, processor, max_model_len, max_image_pixels, graphs, workspaces)
    if ranks is not None:  # the host counts the same pages and states on all of them
        pages, slots = ranks.steps.least(memory.pages), ranks.steps.least(memory.state_slots)
        memory = replace(memory, pages=pages, state_slots=slots)
    layers, quantised = model.spec.text.layers, config.quantised_cache
    caches = allocate_caches(layers, memory.pages, config.page_size, memory.state_slots, device, dtype, quantised)
    arena = EmbeddingArena(memory.blocks * BLOCK_ROWS, model.spec.vision.embedding_width, device, dtype)
    # Of an item that one rank's GPU cannot decode the others would know nothing.
    wanted = config.image_decoder if ranks is None else "cpu"
    gpu_decoder = choose_gpu_decoder(wanted, device, choose_decode_threads(config.decode_threads))
    encodes = Encodes(
        model,
        arena,
        PatchMaker(processor, device, dtype, config.compact_patches, gpu_decoder),
        config.max_patches_per_step,
        None if tower is None else TowerGraphs(tower, capture_cuda_graphs(device), largest_tower_graph(config), model.encode),
        None if ranks is None else ranks.of_tower(model, config),
    )
    captured = None
    if step_graphs:
        capture, limits = capture_cuda_graphs(device), (config.max_num_seqs, config.max_num_batched_tokens, max_model_len)
        captured = StepGraphs(model, caches, arena.rows, sampled, capture, *limits)
    group = None if ranks is None else ranks.steps
    return Worker(model, caches, arena, counts, sampled, encodes, captured, workspaces, group), memory


def graphs_on(name: str, wanted: bool | None, possible: bool) -> bool:
    if wanted and not possible:
        raise ConfigError(f"{name} is on, but graphs need flash-attn-4 on a GPU, and a model whose modules are made for them.")
    return possible if wanted is None else wanted
