"""How much memory the largest steps take on a GPU, measured before the caches are given theirs.

What a request may bring beside tokens and patches, and cannot be measured without one, is worked out: pixels on their way to
patches, and clips of more patches than the tower takes at once. docs/memory.md lists all of it.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec

import torch

from sightline.config import EngineConfig
from sightline.encoder.gpu_decode import LIBRARY_BYTES_PER_PIXEL, MOST_PIXELS
from sightline.encoder.graphs import PATCHES_MULTIPLE
from sightline.encoder.graphs import buckets as tower_buckets
from sightline.encoder.patches import GROUP_BYTES
from sightline.errors import ConfigError
from sightline.models.model import VisionLanguageModel
from sightline.ops.pages import MOST_GATHERED
from sightline.processors import choose_decode_threads
from sightline.spec import PatchTowerSpec, ProcessorSpec
from sightline.worker.profile_run import profile_language, profile_sampling, profile_tower
from sightline.worker.step_graphs import buckets
from sightline.worker.workspaces import Workspaces

# Copies of pixels at a time: as decoded, after the first pass of the resize (or a decoder's scratch), resized.
_PIXEL_COPIES = 3
_STEPS_BEHIND = 2  # that the device may be behind the host
_GRAPH_BYTES = 8 * 1024**2  # what the driver keeps of a captured graph, beside the memory its kernels work in


@dataclass(frozen=True)
class GraphSizes:
    """The CUDA graphs that an engine captures: the largest, how many, and what all of them put out together.

    They share the memory that their kernels work in, but each keeps its result.
    """

    step_tokens: int = 0  # of the largest graph of a step; 0: none
    step_graphs: int = 0
    step_logits: int = 0  # rows of the vocabulary's width
    tower_patches: int = 0  # of the largest graph of the tower; 0: none
    tower_graphs: int = 0
    tower_rows: int = 0  # that are kept of its results


def largest_tower_graph(config: EngineConfig) -> int:
    """Patches of it."""
    return config.max_tower_graph_patches // PATCHES_MULTIPLE * PATCHES_MULTIPLE


def graph_sizes(config: EngineConfig, tower: PatchTowerSpec | None, steps: bool) -> GraphSizes:
    """What an engine with these settings captures: the tower's graphs, unless it is None, and those of steps."""
    captured = buckets(config.max_num_seqs, config.max_num_batched_tokens) if steps else []
    most = largest_tower_graph(config)
    sizes = tower_buckets(tower, most) if tower is not None else []
    return GraphSizes(
        step_tokens=captured[0].tokens if captured else 0,
        step_graphs=len(captured),
        step_logits=sum(bucket.sequences for bucket in captured),
        tower_patches=most if tower is not None else 0,
        tower_graphs=len(sizes),
        tower_rows=most // tower.merge_size**2 if tower is not None else 0,  # all graphs write to one place
    )


@dataclass(frozen=True)
class Peaks:
    """Bytes that steps take for a moment, at the configured limits, and that graphs keep."""

    language: int
    sampling: int
    tower: int
    pixels: int
    graphs: int
    workspaces: int = 0  # kept all the time, and taken before: no part of the others

    @property
    def activations(self) -> int:
        """All at once: the tower has a stream of its own, and torch gives no stream the memory of another."""
        return self.language + self.sampling + self.tower + self.pixels


NO_PEAKS = Peaks(0, 0, 0, 0, 0)


def largest_item(processor: ProcessorSpec, most_rows: int) -> int:
    """Most patches of one image or video, of which `most_rows` embedding rows can be kept."""
    return min(processor.most_patches_per_item(), most_rows * processor.image.merge_size**2)


def measure_peaks(
    model: VisionLanguageModel,
    processor: ProcessorSpec,
    config: EngineConfig,
    longest: int,
    most_rows: int,
    max_image_pixels: int,
    graphs: GraphSizes,
    workspaces: Workspaces,
) -> Peaks:
    """Runs the largest steps on the model's GPU. `longest` is the most tokens of a sequence, `most_rows` of one item."""
    weight = model.text.embed_tokens.weight
    device, vocab = weight.device, model.spec.text.vocab_size
    at_once = max(config.max_patches_per_step, processor.most_patches_at_once())

    def language(tokens: int, sequences: int, context: int = longest) -> int:
        caches = config.page_size, workspaces.gathered, config.quantised_cache
        return _peak(device, lambda: profile_language(model, tokens, sequences, context, *caches))

    def tower(patches: int) -> int:
        return _peak(device, lambda: profile_tower(model, patches))

    with naming_setting("max_num_batched_tokens", config.max_num_batched_tokens):
        # Many sequences have many logits. Where any step gathers keys one long sequence does.
        tokens = config.max_num_batched_tokens
        step = max(language(tokens, 1, min(longest, MOST_GATHERED)), language(tokens, config.max_num_seqs))
    with naming_setting("max_num_seqs", config.max_num_seqs):
        sampling = _peak(device, lambda: profile_sampling(vocab, config.max_num_seqs, device, weight.dtype))
    with naming_setting("max_patches_per_step" if at_once == config.max_patches_per_step else "max_pixels", at_once):
        encode = tower(at_once)
    kept = _GRAPH_BYTES * (graphs.step_graphs + graphs.tower_graphs)
    kept += graphs.step_logits * vocab * weight.dtype.itemsize
    kept += graphs.tower_rows * model.vision.embedding_width * weight.dtype.itemsize
    kept += language(graphs.step_tokens, graphs.step_tokens) if graphs.step_tokens else 0
    kept += tower(graphs.tower_patches) if graphs.tower_patches else 0
    return Peaks(
        language=step,
        sampling=sampling,
        tower=encode + _long_clips(model, largest_item(processor, most_rows) - at_once),
        pixels=pixel_bytes(processor, max_image_pixels) + decoder_bytes(config, max_image_pixels),
        graphs=kept,
        workspaces=workspaces.nbytes,
    )


def _long_clips(model: VisionLanguageModel, patches: int) -> int:
    """Patches beyond those that the tower takes at once wait on the device, as do their rows; joining takes both twice."""
    if patches <= 0:
        return 0
    tower = model.vision
    rows = sum(tower.num_rows(grid) for grid in tower.largest_grids(patches))
    return 2 * (patches * tower.patch_width + rows * tower.embedding_width) * model.text.embed_tokens.weight.dtype.itemsize


def pixel_bytes(processor: ProcessorSpec, max_image_pixels: int) -> int:
    """Pixels on their way to patches: one source of the largest size, or smaller ones together (encoder/pixel_room.py)."""
    return _PIXEL_COPIES * max(3 * max_image_pixels * _frames_at_once(processor), GROUP_BYTES)


def _frames_at_once(processor: ProcessorSpec) -> int:
    return 1 if processor.video is None else processor.video.temporal_patch_size


def fewer_pixels(processor: ProcessorSpec, max_image_pixels: int, saving: int) -> int | None:
    """A max_image_pixels, in whole millions, that takes `saving` bytes less; None if there is none."""
    per_pixel = _PIXEL_COPIES * 3 * _frames_at_once(processor)
    fewer = (max_image_pixels - -(-saving // per_pixel)) // 10**6 * 10**6
    enough = fewer > 0 and pixel_bytes(processor, max_image_pixels) - pixel_bytes(processor, fewer) >= saving
    return fewer if enough else None


def decoder_bytes(config: EngineConfig, max_image_pixels: int) -> int:
    """What a library that decodes JPEGs on the GPU keeps there for itself, of the largest that it is given, in each thread; and
    what it puts out, in groups, of which those of the last steps may be there still."""
    used = config.image_decoder == "gpu" or (config.image_decoder == "auto" and _is_installed("nvidia", "nvimgcodec"))
    threads = choose_decode_threads(config.decode_threads)
    scratch = threads * LIBRARY_BYTES_PER_PIXEL * min(MOST_PIXELS, max_image_pixels)
    return used * (scratch + (_PIXEL_COPIES + _STEPS_BEHIND) * GROUP_BYTES)


def _is_installed(package: str, module: str) -> bool:
    return find_spec(package) is not None and find_spec(f"{package}.{module}") is not None


@contextmanager
def naming_setting(setting: str, value: int) -> Iterator[None]:
    """Running out of memory inside becomes a sentence with the setting to change."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise ConfigError(
            f"{setting} is {value}, but a step of that size does not fit into the GPU's memory beside the weights; "
            f"try {max(1, value // 2)}."
        ) from None


def _peak(device: torch.device, run: Callable[[], object]) -> int:
    """Bytes that torch takes from the device while `run` runs, its rounding and its gaps included."""
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved(device)
    torch.cuda.reset_peak_memory_stats(device)
    run()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_reserved(device) - before
