"""The vision tower alone on a device, for a server that encodes for others: no language model, no pages, no arena."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from sightline.config import Config
from sightline.encoder.gpu_decode import choose_gpu_decoder
from sightline.encoder.graphs import TowerGraphs, for_graphs
from sightline.encoder.patch_maker import PatchMaker
from sightline.models.device import choose_device, choose_dtype, use_device
from sightline.models.files import ModelFiles
from sightline.models.load import dummy_model, load_model
from sightline.models.quantise import Quantiser
from sightline.ops.capture import capture_cuda_graphs
from sightline.ops.dispatch import using_backend
from sightline.processors import choose_decode_threads
from sightline.timing import StageClock
from sightline.worker.activation_peak import largest_tower_graph
from sightline.worker.arena import EmbeddingArena
from sightline.worker.attention_backends import choose_tower_backend
from sightline.worker.build import graphs_on
from sightline.worker.encodes import Encodes
from sightline.worker.load import ProgressCallback, use_threads
from sightline.worker.memory import check_limits
from sightline.worker.step_input import EncodeItem
from sightline.worker.tilings import fix_tilings


@dataclass(frozen=True)
class TowerWorker:
    encodes: Encodes
    device: str
    dtype: str
    digest: str  # of the weights: models/tower_digest.py
    weights_bytes: int

    @property
    def gpu_decoder(self) -> str:
        """The library that decodes images on the GPU; empty: none does."""
        return self.encodes.gpu_decoder.name if self.encodes.gpu_decoder is not None else ""

    @property
    def gpu_kinds(self) -> tuple[str, ...]:
        return self.encodes.gpu_decoder.kinds if self.encodes.gpu_decoder is not None else ()

    def embed(self, items: Sequence[EncodeItem]) -> list[NDArray[np.uint8] | None]:
        """Embeddings of items that go through the tower together, as bytes; None where the GPU cannot decode one."""
        found = self.encodes.embed_together(items)
        return [None if rows is None else rows.contiguous().cpu().flatten().view(torch.uint8).numpy() for rows in found]

    def capture_graphs(self, advance: Callable[[], None]) -> None:
        self.encodes.capture_graphs(advance)

    def close(self) -> None:
        self.encodes.close()


def load_tower(
    config: Config, files: ModelFiles, progress: ProgressCallback | None = None, clock: StageClock | None = None
) -> TowerWorker:
    """`clock` is told how long each part of it took."""
    chosen, engine, clock = config.model, config.engine, clock or StageClock()
    check_limits(engine)
    device = choose_device(chosen.device)
    use_device(device)
    dtype = choose_dtype(chosen.dtype, files.spec.dtype, device)
    quantiser = Quantiser(chosen.quantization, chosen.quantize_tower, files.spec.fp8)
    tilings = fix_tilings(device)  # the same bits as where the tower is beside the language model
    if tilings is not None:
        tilings.log()
    with clock.stage("weights"):
        how = (quantiser, None, True, True)
        if chosen.load_format.startswith("dummy"):
            model = dummy_model(files.spec, device, dtype, files.max_model_len, chosen.seed, *how)
        else:
            model = load_model(files.spec, files.folder, device, dtype, files.max_model_len, progress, *how)
    use_threads(config, device, model.vision)
    choose_tower_backend(model, engine, device, dtype)
    with using_backend(model.tower_backend):
        tower = for_graphs(model.vision)
    graphs = None
    if tower is not None and graphs_on("tower_graphs", engine.tower_graphs, True):
        graphs = TowerGraphs(tower, capture_cuda_graphs(device), largest_tower_graph(engine), model.encode)
    elif tower is None:
        graphs_on("tower_graphs", engine.tower_graphs, False)
    gpu_decoder = choose_gpu_decoder(engine.image_decoder, device, choose_decode_threads(engine.decode_threads))
    encodes = Encodes(
        model,
        EmbeddingArena(0, files.spec.vision.embedding_width, device, dtype),
        PatchMaker(files.processor, device, dtype, engine.compact_patches, gpu_decoder),
        engine.max_patches_per_step,
        graphs,
    )
    held = [*model.vision.parameters(), *model.vision.buffers()]
    return TowerWorker(
        encodes,
        str(device),
        str(dtype).removeprefix("torch."),
        model.tower_digest,
        sum(tensor.numel() * tensor.element_size() for tensor in held),
    )
