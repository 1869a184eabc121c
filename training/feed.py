"""Batches made in processes beside the training, and pools of them on the device.

The device learns several times faster than the processes draw. So what they draw is kept on the device, a ring of samples per
layout, and each training batch is drawn from such a ring: a sample is used a few times, augmented differently each time, before
newer ones take its place.

    process ──► slot of shared memory ── copy ──► ring of its layout, on the device ── at random ──► training batch
"""

import mmap
import multiprocessing as mp
import queue
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from batches import IGNORED, Batch, BatchLayout, batches

BLOCK = 64  # samples that a process hands over at once; rings hold whole blocks
PIXEL_BYTES = BLOCK * 8 * 64 * 96 * 3  # the largest layout: eight frames of a clip
RING_BYTES = 1_200_000_000
ANSWERS = 40  # most answer tokens of a sample
TARGETS = 16  # most characters of a text for the reading loss
READING = 97  # its classes: blank, 95 printable ASCII characters, any other
MOST_TOKENS = 192
ROW = MOST_TOKENS + 2 * ANSWERS + TARGETS + 1  # numbers of a sample beside its pixels, at most
SLOT_BYTES = PIXEL_BYTES + BLOCK * ROW * 4


def _shared(count: int) -> NDArray[np.uint8]:
    """[count, SLOT_BYTES] that forked processes share. Anonymous, so that no limit on /dev/shm applies."""
    return np.frombuffer(mmap.mmap(-1, count * SLOT_BYTES), np.uint8).reshape(count, SLOT_BYTES)


def answer_places(labels: NDArray[np.int64]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Where answer tokens are predicted, the token before each, and what they are: both [batch, ANSWERS], IGNORED behind."""
    at, wanted = np.zeros((len(labels), ANSWERS), np.int32), np.full((len(labels), ANSWERS), IGNORED, np.int32)
    for row, own in enumerate(labels):
        places = np.flatnonzero(own != IGNORED)
        at[row, : len(places)], wanted[row, : len(places)] = places - 1, own[places]
    return at, wanted


def reading_targets(texts: tuple[str, ...]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Classes of the characters, [batch, TARGETS], and how many there are, 0 where there is nothing to read."""
    targets, lengths = np.zeros((len(texts), TARGETS), np.int32), np.zeros(len(texts), np.int32)
    for row, text in enumerate(texts):
        classes = [ord(c) - 31 if 32 <= ord(c) < 127 else READING - 1 for c in text]
        targets[row, : len(classes)], lengths[row] = classes, len(classes)
    return targets, lengths


def _numbers(batch: Batch) -> NDArray[np.int32]:
    """[batch, …]: token ids, places of answers, answers, reading targets, their number."""
    targets, lengths = reading_targets(batch.texts)
    parts = (batch.token_ids.astype(np.int32), *answer_places(batch.labels), targets, lengths[:, None])
    return np.concatenate(parts, 1)


def _work(slots: NDArray[np.uint8], free: "mp.Queue[int]", out: "mp.Queue[Any]", source: tuple[Any, ...]) -> None:
    for batch in batches(*source):
        slot = free.get()
        pixels, numbers = batch.pixels.reshape(-1), _numbers(batch)
        slots[slot, : pixels.size] = pixels
        slots[slot, PIXEL_BYTES : PIXEL_BYTES + numbers.nbytes].view(np.int32)[:] = numbers.reshape(-1)
        out.put((slot, batch.layout, batch.positions))


@dataclass(frozen=True)
class Drawn:
    """A training batch on the device."""

    pixels: torch.Tensor  # uint8 [batch, frames, height, width, 3]
    ids: torch.Tensor  # [batch, tokens]
    at: torch.Tensor  # [batch, ANSWERS]: the token before each answer token
    wanted: torch.Tensor  # [batch, ANSWERS]: the answer tokens, IGNORED behind them
    targets: torch.Tensor  # [batch, TARGETS]
    lengths: torch.Tensor  # [batch]


class Ring:
    """The newest samples of one layout, on the device."""

    def __init__(self, layout: BatchLayout, positions: NDArray[np.int64], device: torch.device) -> None:
        self.layout = layout
        count, height, width = layout.shape
        self.capacity = min(65536, RING_BYTES // (count * height * width * 3)) // BLOCK * BLOCK
        self.received = 0
        self._widths = (layout.tokens, ANSWERS, ANSWERS, TARGETS, 1)
        self._pixels = torch.zeros(self.capacity, count, height, width, 3, dtype=torch.uint8, device=device)
        self._numbers = torch.zeros(self.capacity, sum(self._widths), dtype=torch.int32, device=device)
        self._filled = torch.zeros((), dtype=torch.int64, device=device)  # samples to draw from
        self.positions = torch.from_numpy(positions).to(device)

    def add(self, slot: NDArray[np.uint8]) -> None:
        """A block, without waiting for the device; the slot must stay as it is until the copies are done."""
        at = self.received % self.capacity
        for ring, start in ((self._pixels, 0), (self._numbers, PIXEL_BYTES)):
            block = ring[at : at + BLOCK]
            source = torch.from_numpy(slot[start : start + block.nbytes])
            block.copy_(source.view(block.dtype).view(block.shape), non_blocking=True)
        self.received += BLOCK
        self._filled.fill_(min(self.received, self.capacity))

    def draw(self, count: int) -> Drawn:
        """Samples at random, chosen on the device."""
        rows = (torch.rand(count, device=self._filled.device, dtype=torch.float64) * self._filled).long()
        ids, at, wanted, targets, lengths = self._numbers[rows].long().split(self._widths, 1)
        return Drawn(self._pixels[rows], ids, at, wanted, targets, lengths[:, 0])


class Feed:
    """Rings that processes fill; `level` can be turned up while they run. Start it before the device is used: it forks."""

    def __init__(self, folder: Path, workers: int, seed: int, skills: dict[str, float], level: float) -> None:
        fork = mp.get_context("fork")
        self.level = fork.Value("d", level)
        self.rings: dict[BatchLayout, Ring] = {}
        self._slots = _shared(6 * workers)
        self._free, self._full = fork.Queue(), fork.Queue()
        for slot in range(len(self._slots)):
            self._free.put(slot)
        self._workers = []
        for place in range(workers):
            source = (folder, "train", BLOCK, seed + place, workers, self.level, skills)
            self._workers.append(fork.Process(target=_work, args=(self._slots, self._free, self._full, source), daemon=True))
            self._workers[-1].start()
        self._copied: list[tuple[int, Any]] = []  # slots being copied, and the event after which they are free again
        self.drawn = 0  # samples that came from the processes

    def pin(self) -> None:
        """Lets the device copy from the slots while the host goes on."""
        status = torch.cuda.cudart().cudaHostRegister(self._slots.ctypes.data, self._slots.nbytes, 0)
        assert int(status) == 0, f"cudaHostRegister: {status}"

    def take_in(self, device: torch.device, wait: bool = False) -> None:
        """Whatever the processes have ready goes to its ring; with `wait`, at least one block."""
        while True:
            try:
                slot, layout, positions = self._full.get(block=wait)
            except queue.Empty:
                break
            wait = False
            ring = self.rings.get(layout)
            if ring is None:
                ring = self.rings[layout] = Ring(layout, positions, device)
            ring.add(self._slots[slot])
            self.drawn += BLOCK
            if device.type == "cuda":
                event = torch.cuda.Event()
                event.record()
                self._copied.append((slot, event))
            else:
                self._free.put(slot)
        while self._copied and self._copied[0][1].query():
            self._free.put(self._copied.pop(0)[0])

    def close(self) -> None:
        for worker in self._workers:
            worker.terminate()
