"""From a checkpoint's files to a worker: the device, the numbers it runs in, weights, memory."""

from collections.abc import Callable

import torch

from sightline.config import Config
from sightline.models.device import choose_device, choose_dtype, use_device
from sightline.models.experts import route_uniformly
from sightline.models.files import ModelFiles
from sightline.models.fp8_summary import summarise
from sightline.models.load import dummy_model, load_model
from sightline.models.model import VisionLanguageModel
from sightline.models.quantise import Quantiser
from sightline.parallel.rank_info import RankInfo
from sightline.processors import choose_cpu_threads
from sightline.timing import StageClock
from sightline.worker.build import build_worker
from sightline.worker.facts import WorkerFacts
from sightline.worker.memory import MemoryPlan
from sightline.worker.ranks import Ranks
from sightline.worker.tilings import TilingFacts, fix_tilings
from sightline.worker.worker import Worker

ProgressCallback = Callable[[int, int], None]  # parameters loaded, of how many


def load_worker(
    config: Config,
    files: ModelFiles,
    progress: ProgressCallback | None = None,
    clock: StageClock | None = None,
    rank: RankInfo | None = None,
) -> tuple[Worker, WorkerFacts]:
    """`clock` is told how long each part of it took. `rank`: this process, where several hold the model together."""
    chosen, clock = config.model, clock or StageClock()
    device = choose_device(chosen.device, 0 if rank is None else rank.rank)
    use_device(device)
    dtype = choose_dtype(chosen.dtype, files.spec.dtype, device)
    quantiser = Quantiser(chosen.quantization, chosen.quantize_tower, files.spec.fp8)
    ranks = None if rank is None else Ranks.join(rank, files.spec, config.engine, device)
    shard = None if ranks is None else ranks.shard
    tilings = fix_tilings(device, None if ranks is None else ranks.steps)
    how = (quantiser, shard, False, config.encoder.encoder_url is not None)
    with clock.stage("weights"):
        if chosen.load_format.startswith("dummy"):
            model = dummy_model(files.spec, device, dtype, files.max_model_len, chosen.seed, *how)
            if chosen.load_format == "dummy-uniform":
                route_uniformly(model.text, max(config.engine.max_num_batched_tokens, config.engine.max_num_seqs), chosen.seed)
        else:
            model = load_model(files.spec, files.folder, device, dtype, files.max_model_len, progress, *how)
        if ranks is not None:
            ranks.connect(model)
    use_threads(config, device, model.text)
    with clock.stage("memory"):
        pixels = config.media.max_image_pixels
        worker, memory = build_worker(model, files.processor, config.engine, files.max_model_len, pixels, ranks)
    return worker, facts_of(worker, memory, tilings)


def use_threads(config: Config, device: torch.device, computed: torch.nn.Module) -> None:
    """On a CPU, as many as `computed`, most of what runs, makes worth it."""
    if device.type == "cpu":
        threads = choose_cpu_threads(config.engine.cpu_threads, sum(each.numel() for each in computed.parameters()))
        if threads is not None:
            torch.set_num_threads(threads)


def facts_of(worker: Worker, memory: MemoryPlan, tilings: TilingFacts | None = None) -> WorkerFacts:
    model: VisionLanguageModel = worker.model
    weight = model.text.embed_tokens.weight
    held = [*model.parameters(), *model.buffers()]
    return WorkerFacts(
        memory=memory,
        device=str(weight.device),
        dtype=str(weight.dtype).removeprefix("torch."),
        vocab_size=model.spec.text.vocab_size,
        weights_bytes=sum(tensor.numel() * tensor.element_size() for tensor in held),
        quantization=str(summarise(model)),
        gpu_decoder=worker.gpu_decoder.name if worker.gpu_decoder is not None else "",
        gpu_kinds=worker.gpu_decoder.kinds if worker.gpu_decoder is not None else (),
        tilings=tilings,
        tower_digest=model.tower_digest,
        long_rope_from=model.spec.text.long_rope_from,
    )
