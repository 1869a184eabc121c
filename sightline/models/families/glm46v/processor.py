"""What GLM-4.6V sees of images and videos: as GLM-4.1V, but for which frames it takes and how it writes their times."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sightline.media.item import pad_frames
from sightline.models.families.glm4v.processor import GlmProcessor, read_patches
from sightline.models.family import ProcessorFiles
from sightline.spec import ModelSpec
from sightline.types import VideoHeader

# Temporal patches a second, by the longest clip in seconds that gets them. What goes beyond the last is sampled as if it had
# that length.
_RATES = ((30, 3.0), (300, 1.0), (2400, 0.5))
_MOST_FRAMES = 640


@dataclass(frozen=True)
class Glm46vProcessor(GlmProcessor):
    def sample_frames(self, header: VideoHeader) -> tuple[int, ...]:
        """So many frames a second, fewer in longer clips. No frame twice, but the last one to make their number even.

        transformers takes no frame at all of a clip that is shorter than one interval; we take the first.
        """
        total, longest = header.frame_count, _RATES[-1][0]
        seconds = min(header.duration, longest)
        rate = self.frames.temporal_patch_size * next(rate for limit, rate in _RATES if seconds <= limit)
        count = min(int(seconds * rate), _MOST_FRAMES)
        indices: Sequence[int] = _on_the_clock(header, 1 / rate) if total >= count else []
        if len(indices) != count:
            last = indices[-1] if 0 < len(indices) < count else total - 1
            indices = np.linspace(0, last, count, dtype=int).tolist()
        return pad_frames(list(dict.fromkeys(indices)) or [0], self.frames.temporal_patch_size)

    def most_frames(self) -> int:
        return _MOST_FRAMES

    def written_time(self, seconds: float) -> str:
        return f"{seconds:.1f} seconds"


def _on_the_clock(header: VideoHeader, interval: float) -> list[int]:
    """The first frame of each interval, up to the last whole second.

    Times are summed up and compared as transformers does it, whose rounding decides which frame is the first.
    """
    indices, clock, per_frame = [], 0.0, 1 / header.fps
    for index in range(header.frame_count):
        if index * per_frame >= clock:
            clock += interval
            indices.append(index)
            if clock >= int(header.duration):
                break
    return indices


def read_processor(files: ProcessorFiles, spec: ModelSpec) -> Glm46vProcessor:
    files.video.ignore("fps", "max_duration")  # its rates are fixed
    return read_patches(Glm46vProcessor, files, spec)
