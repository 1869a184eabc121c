"""What Qwen3-VL sees of images and videos: a budget for an image or a whole clip, a video as frames with their times."""

from dataclasses import dataclass, replace
from typing import Literal

from sightline.media.sizes import ClipBudget, PictureBudget
from sightline.models import hf_config
from sightline.models.family import ProcessorFiles
from sightline.models.grid_processor import GridProcessor, form_of_groups, group_ends
from sightline.spec import ModelSpec
from sightline.types import MediaItem, PromptForm, VideoHeader


@dataclass(frozen=True)
class Qwen3VLProcessor(GridProcessor):
    fps: float = 2.0
    min_frames: int = 4
    max_frames: int = 768

    image_pad = "<|image_pad|>"
    video_pad = "<|video_pad|>"
    image_budget = PictureBudget
    video_budget = ClipBudget

    def sample_frames(self, header: VideoHeader) -> list[int]:
        """Evenly from the first to the last frame, both included."""
        total = header.frame_count
        count = int(total / header.fps * self.fps)
        count = min(max(count, self.min_frames), self.max_frames, total)
        return self.spread(total, count)

    def with_sampling(self, fps: float | None, num_frames: int | None, max_frames: int | None) -> "Qwen3VLProcessor":
        super().with_sampling(None, num_frames, max_frames)  # checks them
        return replace(self, num_frames=num_frames, fps=fps or self.fps, max_frames=max_frames or self.max_frames)

    def most_frames(self) -> int:
        return self.max_frames

    def placeholders(self, kind: Literal["image", "video"]) -> tuple[str, ...]:
        # Each frame is written with a start and an end of its own, so a template's outer ones go.
        return (self.image_pad,) if kind == "image" else (_marked(self.video_pad), self.video_pad)

    def video_form(self, item: MediaItem) -> PromptForm:
        frame = _marked(self.video_pad)
        return form_of_groups(item, [f"<{(first + last) / 2:.1f} seconds>{frame}" for first, last in group_ends(item)])


def _marked(pad: str) -> str:
    return f"<|vision_start|>{pad}<|vision_end|>"


def read_processor(files: ProcessorFiles, spec: ModelSpec) -> Qwen3VLProcessor:
    half = hf_config.HALF
    processor = Qwen3VLProcessor(
        image=hf_config.read_patches(files.image, spec, (65536, 16777216), half, half),
        video=hf_config.read_patches(files.video, spec, (131072, 786432), half, half),
        fps=files.video.number("fps", 2.0),
        min_frames=files.video.integer("min_frames", 4),
        max_frames=files.video.integer("max_frames", 768),
    )
    files.done()
    return processor
