"""The tower as CUDA graphs: the launches of a forward pass, captured once per bucket of sizes and replayed.

A graph remembers addresses and counts, not values. So all that varies lies in buffers that are rewritten before each replay:

    patches, places   | of this batch … | left over from others |     rows past the batch belong to no segment: attention never
    segment starts    0 … n | n n n n n                               reads them, every other op treats rows apart, and nobody
    result            | of this batch … | meaningless           |     copies them out

The result is copied before it is handed out, so a later replay cannot change it. All graphs share one pool of memory: only one
runs at a time. Larger batches than the largest bucket gain nothing from a graph and run without.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from sightline.models.patch_tower import PatchTower, TowerBlock
from sightline.models.tower import Tower
from sightline.models.tower_batch import TowerBatch, WindowLayout
from sightline.ops.attention import segment_attention
from sightline.ops.capture import Capture, Replay
from sightline.ops.dispatch import Implementation, kernels_are_on
from sightline.spec import PatchTowerSpec

SEGMENTS = (1, 4, 16, 64)  # empty segments cost a little each, so a lone image does not carry sixty-three of them
MOST_PATCHES = 8192  # of the largest bucket, unless a lower limit is set
PATCHES_MULTIPLE = 64  # of so many patches is each bucket
# Up to so many patches, buckets are so far apart: those of one image, and those of several, where sizes vary too much for more.
_ONE_IMAGE = ((1024, 64), (2048, 128), (MOST_PATCHES, 256))
_SEVERAL = ((4096, 512), (MOST_PATCHES, 1024))


@dataclass(frozen=True)
class TowerBucket:
    patches: int
    segments: int  # frames
    windows: int  # windows of attention; 0 for towers without


def buckets(spec: PatchTowerSpec, most: int = MOST_PATCHES) -> list[TowerBucket]:
    """All that are ever captured, the smallest first.

    How many windows an image has depends on its shape: a window has at least one row, so a bucket's rows bound them, and half
    of that is enough for all but the narrowest images.
    """
    found = []
    for segments in SEGMENTS:
        for patches in _sizes(_ONE_IMAGE if segments == 1 else _SEVERAL, most):
            rows = patches // spec.merge_size**2
            windows = (0,) if spec.window is None else (rows // 8, rows // 2, rows)
            found += [TowerBucket(patches, segments, count) for count in windows]
    return sorted(found, key=lambda bucket: (bucket.patches, bucket.segments, bucket.windows))


def _sizes(steps: tuple[tuple[int, int], ...], most: int) -> list[int]:
    """What a bucket has beyond a batch is computed in vain, but for attention."""
    found = [steps[0][1]]
    while found[-1] < most:
        found.append(min(most, found[-1] + next(step for end, step in steps if found[-1] < end)))
    return [size for size in found if size <= most]


class TowerGraphs:
    def __init__(
        self,
        tower: PatchTower,
        capture: Capture,
        most_patches: int = MOST_PATCHES,
        encode: Callable[[TowerBatch], torch.Tensor] | None = None,
    ) -> None:
        """`most_patches` is a multiple of 64; `encode` is how the tower is run, by default as it is."""
        self._encode = tower if encode is None else encode
        assert most_patches % PATCHES_MULTIPLE == 0
        self._tower, self._capture = tower, capture
        self._buckets = buckets(tower.spec, most_patches)
        self._graphs: dict[TowerBucket, tuple[Replay, torch.Tensor]] = {}
        spec, weight = tower.spec, tower.patch_embed.folded
        device = weight.device
        self._merged = spec.merge_size**2  # patches that become a row
        rows = most_patches // self._merged

        def whole(*shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
            return torch.ones(shape, dtype=dtype, device=device)

        self._patches = torch.zeros(most_patches, weight.shape[1], dtype=weight.dtype, device=device)
        self._row_col, self._grid_size = whole(most_patches, 2), whole(most_patches, 2)
        self._starts = whole(SEGMENTS[-1] + 1)
        self._numbers = torch.arange(rows, device=device)  # the order of rows that no window has
        self._order, self._inverse = self._numbers.clone(), self._numbers.clone()
        self._window_starts = whole(rows + 1)
        self._rows = torch.zeros(rows, spec.embedding_width, dtype=weight.dtype, device=device)

    def __len__(self) -> int:
        return len(self._graphs)

    @torch.inference_mode()
    def capture_all(self, advance: Callable[[], None]) -> None:
        """But for towers with windows: they have so many buckets that each is captured when it is first needed."""
        if self._tower.spec.window is None:
            for bucket in reversed(self._buckets):  # the largest first, so that the others find room in its memory
                self._captured(bucket)
                advance()

    def bucket_of(self, batch: TowerBatch) -> TowerBucket | None:
        """The smallest bucket that the batch fits; None if there is none, or if it has clips, whose patches are wider."""
        if len(batch.patches) != 1 or batch.patches[0].shape[1] != self._patches.shape[1]:
            return None
        count, frames = len(batch.patches[0]), len(batch.segment_lengths)
        windows = 0 if batch.windows is None else len(batch.windows.lengths)
        fits = (b for b in self._buckets if b.patches >= count and b.segments >= frames and b.windows >= windows)
        return next(fits, None)

    def run(self, batch: TowerBatch) -> torch.Tensor | None:
        """Rows of the batch, as the tower gives them; None where no bucket fits, or definitions are to run."""
        bucket = self.bucket_of(batch) if kernels_are_on() else None
        if bucket is None:
            return None
        self._fill(batch, bucket)
        replay, rows = self._captured(bucket)
        replay()
        return rows[: len(batch.patches[0]) // self._merged].clone()

    def _captured(self, bucket: TowerBucket) -> tuple[Replay, torch.Tensor]:
        if bucket not in self._graphs:
            static = self._static_batch(bucket)
            # One place for the rows of all graphs: else each would keep memory for its own.
            out = self._rows[: bucket.patches // self._merged]
            self._graphs[bucket] = self._capture(lambda: out.copy_(self._encode(static)))
        return self._graphs[bucket]

    def _fill(self, batch: TowerBatch, bucket: TowerBucket) -> None:
        count = len(batch.patches[0])
        self._patches[:count].copy_(batch.patches[0])
        self._row_col[:count].copy_(batch.row_col)
        self._grid_size[:count].copy_(batch.grid_size)
        _fill_starts(self._starts[: bucket.segments + 1], batch.segment_starts, count)
        if batch.windows is not None:
            rows, end = count // self._merged, bucket.patches // self._merged
            for buffer, own in ((self._order, batch.windows.order), (self._inverse, batch.windows.inverse)):
                buffer[:rows].copy_(own)
                buffer[rows:end].copy_(self._numbers[rows:end])
            _fill_starts(self._window_starts[: bucket.windows + 1], batch.windows.starts, count)

    def _static_batch(self, bucket: TowerBucket) -> TowerBatch:
        """What the graph reads. Lengths bound segments from above: kernels take them from the starts."""
        rows = bucket.patches // self._merged
        windows = None
        if bucket.windows:
            window = self._tower.spec.window
            assert window is not None
            longest = (window.window_pixels // self._tower.spec.patch_embed.patch_size) ** 2
            starts = self._window_starts[: bucket.windows + 1]
            windows = WindowLayout(self._order[:rows], self._inverse[:rows], starts, (longest,))
        return TowerBatch(
            patches=(self._patches[: bucket.patches],),
            row_col=self._row_col[: bucket.patches],
            grid_size=self._grid_size[: bucket.patches],
            segment_starts=self._starts[: bucket.segments + 1],
            segment_lengths=(bucket.patches,),
            windows=windows,
        )


def for_graphs(tower: Tower) -> PatchTower | None:
    """The tower, if graphs can be captured of it: if it is the shared one, whose batches are known here, and its attention
    runs where all that varies is on the device."""
    if not isinstance(tower, PatchTower):
        return None
    weight = tower.patch_embed.folded
    if weight.device.type != "cuda":
        return None
    return tower if chosen_segment_attention(tower).graph_safe else None


def chosen_segment_attention(tower: PatchTower) -> Implementation[..., torch.Tensor]:
    """What attention in the tower runs."""
    block, weight = tower.blocks[0], tower.patch_embed.folded
    assert isinstance(block, TowerBlock)
    padded_head_dim = block.proj.weight.shape[1] // block.heads
    q, k, v = torch.empty(8, 3, block.heads, padded_head_dim, dtype=weight.dtype, device=weight.device).unbind(1)
    starts = torch.tensor([0, 8], dtype=torch.int32, device=weight.device)
    return segment_attention.choose(q, k, v, starts, (8,), 1.0)


def _fill_starts(buffer: torch.Tensor, starts: torch.Tensor, end: int) -> None:
    """The batch's own, then empty segments."""
    buffer[: len(starts)].copy_(starts)
    buffer[len(starts) :].fill_(end)
