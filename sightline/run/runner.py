"""Executes what the scheduler planned: encodes images into the arena, computes tokens, samples."""

from collections import deque
from collections.abc import Iterable
from collections.abc import Sequence as Seq
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from sightline.cache.embeddings import EmbeddingCache
from sightline.config import EngineConfig
from sightline.errors import ConfigError, MediaError
from sightline.models.inputs import LayerCache
from sightline.models.model import VisionLanguageModel
from sightline.ops.pages import GatheringRoom
from sightline.processors import available_processors
from sightline.run.batch import PackedBatch, known_tokens, pack_batch
from sightline.run.device_timer import DeviceTimer
from sightline.run.readout import Readout
from sightline.run.sampler import SamplingRow, sample
from sightline.run.step_graphs import StepGraphs
from sightline.schedule.state import Chunk, Encode
from sightline.spec import ProcessorSpec
from sightline.timing import StageClock
from sightline.types import MediaItem
from sightline.vision.arena import EmbeddingArena
from sightline.vision.gpu_decode import GpuDecoder
from sightline.vision.graphs import TowerGraphs
from sightline.vision.patch_maker import Made, PatchMaker
from sightline.vision.pieces import cut_pieces
from sightline.vision.tower_batch import Grid, make_tower_batch

MOST_DECODE_THREADS = 16


@dataclass
class RunnerCounts:
    """What was really done; tests count on it."""

    decoded: int = 0  # images and videos whose pixels were decoded
    videos_decoded: int = 0  # the videos among them
    encoded: int = 0  # images and videos that went through the tower
    videos_encoded: int = 0  # the videos among them
    patches: int = 0
    peak_patches: int = 0  # most patches on the device at once
    peak_items: int = 0  # most items whose patches were on the device at once
    restored: int = 0  # rows brought back from the host tier, in items
    tokens: int = 0
    steps: int = 0


@dataclass
class Encoded:
    failures: dict[bytes, Exception] = field(default_factory=dict)  # by key of the embedding entry
    clock: StageClock = field(default_factory=StageClock)  # decode and preprocess
    tower: DeviceTimer | None = None  # the tower's run; None if it did not run


@dataclass(frozen=True)
class EncodedAside:
    keys: list[bytes]  # of embedding entries
    done: "torch.cuda.Event | None"  # None: already, on a CPU


def choose_decode_threads(wanted: int | None) -> int:
    if wanted is None:
        return min(MOST_DECODE_THREADS, available_processors())
    if wanted < 1:
        raise ConfigError(f"decode_threads is {wanted}, but must be at least 1.")
    return wanted


class Runner:
    def __init__(
        self,
        model: VisionLanguageModel,
        processor: ProcessorSpec,
        caches: list[LayerCache],
        arena: EmbeddingArena,
        embeddings: EmbeddingCache,
        decode_threads: int,
        compact_patches: bool = True,
        tower_graphs: TowerGraphs | None = None,
        step_graphs: StepGraphs | None = None,
        gpu_decoder: GpuDecoder | None = None,
        most_patches: int = EngineConfig.max_patches_per_step,
        room: GatheringRoom | None = None,
    ) -> None:
        self.model, self.processor, self._graphs = model, processor, tower_graphs
        self.caches, self.arena, self.embeddings = caches, arena, embeddings
        self.device, self._most_patches, self._room = arena.rows.device, most_patches, room
        self.counts = RunnerCounts()
        self._decoders = ThreadPoolExecutor(decode_threads, thread_name_prefix="decode")
        self.step_graphs = step_graphs
        self._side = torch.cuda.Stream(self.device) if self.device.type == "cuda" else None
        self._aside: deque[EncodedAside] = deque()  # in the order they were begun
        self._sampled: torch.Tensor | None = None  # tokens of the last step, on the device
        self._places: dict[int, int] = {}  # where each sequence's stands among them, by id
        self.gpu_decoder = gpu_decoder
        dtype = arena.rows.dtype
        self._patches = PatchMaker(processor, self.device, dtype, compact_patches, self._decoders, gpu_decoder)
        self.ahead = self._patches.ahead

    def record_graphs(self) -> None:
        """So that no request waits for it."""
        if self._graphs is not None:
            self._graphs.record_all()
        if self.step_graphs is not None:
            self.step_graphs.record_all()

    @property
    def recorded_graphs(self) -> int:
        return sum(len(graphs) for graphs in (self._graphs, self.step_graphs) if graphs is not None)

    @property
    def gpu_bytes(self) -> int:
        """What torch has taken from the GPU, in use or kept for later; 0 on a CPU."""
        return torch.cuda.memory_reserved(self.device) if self.device.type == "cuda" else 0

    def give_memory_back(self) -> None:
        """What torch keeps for later steps goes back to the GPU; the next ones take it again."""
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def encode(self, encodes: Seq[Encode], aside: bool = False) -> Encoded:
        """Fills the reserved entries. An item that cannot be decoded fails alone; its entry is left to the caller.

        `aside`: on a stream of its own, beside what is computed meanwhile; `encoded_aside` says when it is done.
        """
        if not aside:
            if self._aside and self._aside[-1].done is not None:  # both use the tower's buffers
                torch.cuda.current_stream(self.device).wait_event(self._aside[-1].done)
            return self._encode(encodes)
        if self._side is None:
            result, done = self._encode(encodes), None
        else:
            # What is queued now may still read rows whose places are taken.
            here = torch.cuda.current_stream(self.device)
            self._side.wait_stream(here)
            try:
                with torch.cuda.stream(self._side):
                    result = self._encode(encodes)
            except BaseException:
                here.wait_stream(self._side)  # what it was at may still write to places that others get now
                raise
            done = self._side.record_event()
        keys = [encode.entry.key for encode in encodes if encode.entry.key not in result.failures]
        self._aside.append(EncodedAside(keys, done))
        return result

    def encoded_aside(self, wait: bool) -> list[bytes]:
        """Keys of entries that were encoded aside and are done since this was last asked; all of them if it may wait."""
        found: list[bytes] = []
        while self._aside:
            done = self._aside[0].done
            if done is not None and wait:
                done.synchronize()
            if done is not None and not done.query():
                break
            found += self._aside.popleft().keys
        return found

    def _encode(self, encodes: Seq[Encode]) -> Encoded:
        result = Encoded()
        for encode in encodes:
            for offload in encode.offloads:
                self.arena.save(offload.key, offload.blocks, offload.rows)
        pending = []
        for encode in encodes:
            entry = encode.entry
            if encode.from_host and self.arena.restore(entry.key, self.embeddings.row_slots(entry, 0, entry.rows)):
                self.counts.restored += 1
            else:
                pending.append(encode)
        for key in self.embeddings.host_evicted():
            self.arena.drop(key)
        patches = self.make_patches_of([encode.item for encode in pending], result.clock)
        good = []
        for encode, made in zip(pending, patches, strict=True):
            if isinstance(made, MediaError):
                result.failures[encode.entry.key] = made
            else:
                good.append((encode, made))
        if good:
            result.tower = DeviceTimer(self.device)
            with result.tower:
                rows = self.encode_patches([encode.item for encode, _ in good], [made for _, made in good])
                slots = [self.embeddings.row_slots(encode.entry, 0, encode.entry.rows) for encode, _ in good]
                self.arena.store(np.concatenate(slots), rows)
        return result

    def decode_ahead(self, items: Iterable[MediaItem]) -> None:
        """Starts decoding what will be needed soon, beside what the device does; see vision/decode_ahead.py."""
        before = self.ahead.decoded
        self.ahead.want(items)
        self.counts.decoded += self.ahead.decoded - before

    def make_patches_of(self, items: Seq[MediaItem], clock: StageClock) -> list[Made]:
        made, now = self._patches.make(items, clock)
        self.counts.decoded += now
        self.counts.videos_decoded += sum(bool(item.ref.data) and item.ref.kind == "video" for item in items)
        return made

    def encode_patches(self, items: Seq[MediaItem], patches: Seq[torch.Tensor]) -> torch.Tensor:
        """Rows of several items, one after another."""
        total = sum(item.patches for item in items)
        counts = self.counts
        counts.encoded += len(items)
        counts.videos_encoded += sum(item.ref.kind == "video" for item in items)
        counts.patches += total
        counts.peak_patches = max(counts.peak_patches, total)
        counts.peak_items = max(counts.peak_items, len(items))
        pieces = cut_pieces(patches, [item.grid for item in items], self._most_patches)
        found = [self._run_tower(parts, grids) for parts, grids in pieces]
        return found[0] if len(found) == 1 else torch.cat(found)

    def _run_tower(self, patches: Seq[torch.Tensor], grids: Seq[Grid]) -> torch.Tensor:
        batch = make_tower_batch(patches, grids, self.model.spec.vision, self.device)
        rows = self._graphs.run(batch) if self._graphs is not None else None
        return rows if rows is not None else self.model.encode(batch)

    def compute(self, chunks: Seq[Chunk], rows: Seq[SamplingRow]) -> Readout | None:
        """Launches the chunks and samples a token for each that samples, in order. Does not wait for the device.

        Tokens that the step before sampled and that nobody has read yet are taken on the device.
        """
        batch = pack_batch(chunks, self.embeddings, self._places)
        self.counts.steps += 1
        self.counts.tokens += len(batch.token_ids)
        logits = self.step_graphs.run(batch) if self.step_graphs is not None else None
        if logits is None:
            logits = self._run_model(batch)
        self._places = {}
        if not rows:
            return None
        sampled = sample(logits, rows)
        self._keep(sampled.token_ids)
        self._places = {chunk.sequence.id: place for place, chunk in enumerate(c for c in chunks if c.samples)}
        return Readout(sampled)

    def _run_model(self, batch: PackedBatch) -> torch.Tensor:
        on_device = batch.on(self.device, self.arena.rows, self._room)
        if self._sampled is not None and self._places:
            on_device = replace(on_device, token_ids=known_tokens(on_device.token_ids, self._sampled))
        logits: torch.Tensor = self.model(on_device, self.caches)
        return logits

    def _keep(self, token_ids: torch.Tensor) -> None:
        """For the next step; where graphs look for them, if there are graphs."""
        if self.step_graphs is None:
            self._sampled = token_ids
        else:
            self._sampled = self.step_graphs.sampled
            self._sampled[: len(token_ids)].copy_(token_ids)

    def close(self) -> None:
        self._decoders.shutdown(wait=False, cancel_futures=True)
        if self.gpu_decoder is not None:
            self.gpu_decoder.close()
