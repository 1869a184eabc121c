"""What Qwen2.5-VL sees of images and videos: a budget for each picture, a video as one block on a time axis."""

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from sightline.media.sizes import PictureBudget
from sightline.models import hf_config
from sightline.models.family import ProcessorFiles
from sightline.models.grid_processor import GridProcessor
from sightline.spec import ModelSpec
from sightline.types import FRAMES, MediaItem, PromptForm, VideoHeader


@dataclass(frozen=True)
class Qwen25VLProcessor(GridProcessor):
    fps: float
    min_frames: int
    max_frames: int
    tokens_per_second: float  # how fast the time axis of the positions runs

    image_pad = "<|image_pad|>"
    video_pad = "<|video_pad|>"
    image_budget = video_budget = PictureBudget

    def sample_frames(self, header: VideoHeader) -> list[int]:
        """An even number of frames, each at the start of an equal share of the video.

        transformers takes int(arange(0, total, total / count)) in float32, which now and then has one index too many and, in
        videos of many thousand frames, indices one too high. Whole numbers give what it means. It fails on a video of one
        frame; we take that frame.
        """
        total, step = header.frame_count, self.frames.temporal_patch_size
        wanted = min(max(total / header.fps * self.fps, self.min_frames), self.max_frames, total)
        count = math.floor(wanted / step) * step
        if count == 0:
            return list(range(min(total, step)))
        return self._starts(total, count)

    def spread(self, total: int, count: int) -> list[int]:
        step = self.frames.temporal_patch_size
        rounded = min(round(count / step), total // step) * step
        return self._starts(total, rounded) if rounded else list(range(min(total, step)))

    def _starts(self, total: int, count: int) -> list[int]:
        return [position * total // count for position in range(count)]

    def with_sampling(self, fps: float | None, num_frames: int | None, max_frames: int | None) -> "Qwen25VLProcessor":
        super().with_sampling(None, num_frames, max_frames)  # checks them
        return replace(self, num_frames=num_frames, fps=fps or self.fps, max_frames=max_frames or self.max_frames)

    def most_frames(self) -> int:
        return self.max_frames

    def video_form(self, item: MediaItem) -> PromptForm:
        return PromptForm(self.video_pad, (item.rows,))

    def group_times(self, item: MediaItem, groups: int) -> NDArray[np.int32]:
        """In float32, as every reference implementation: there a spacing of 0.9999999999999998 s, from a frame rate that was
        divided and multiplied back, is a whole second, where float64 would floor it one too low."""
        if item.ref.kind == "image":
            return np.zeros(1, dtype=np.int32)
        moments = np.arange(groups, dtype=np.float32) * np.float32(seconds_per_group(item)) * np.float32(self.tokens_per_second)
        return moments.astype(np.int32)


def seconds_per_group(item: MediaItem) -> float:
    """Seconds of video that one temporal patch stands for, by the rate of the sampled frames."""
    header = item.ref.header
    assert isinstance(header, VideoHeader)
    frames_per_group = len(item.frame_indices) // item.grid[0]
    if header.format == FRAMES:  # all of them are sampled, at their own rate; the one that fills the last group is none of them
        return frames_per_group / header.fps
    sampled_fps = len(item.frame_indices) / header.frame_count * header.fps
    return frames_per_group / sampled_fps


def read_processor(files: ProcessorFiles, spec: ModelSpec) -> Qwen25VLProcessor:
    mean, std, token_area = hf_config.CLIP_MEAN, hf_config.CLIP_STD, 28 * 28
    processor = Qwen25VLProcessor(
        image=hf_config.read_patches(files.image, spec, (3136, 1280 * token_area), mean, std),
        # 128 to 768 tokens per frame: what the family's own tools use; its checkpoints have no file for video
        video=hf_config.read_patches(files.video, spec, (128 * token_area, 768 * token_area), mean, std),
        fps=files.video.number("fps", 2.0),
        min_frames=files.video.integer("min_frames", 4),
        max_frames=files.video.integer("max_frames", 768),
        tokens_per_second=files.config.section("vision_config").number("tokens_per_second", 4.0),
    )
    files.done()
    return processor
