"""What GLM-4.1V sees of images and videos: a still is a clip of one temporal patch, a video is frames and their seconds."""

import math
from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from sightline.media.item import pad_frames
from sightline.media.sizes import ClipBudget
from sightline.models import hf_config
from sightline.models.family import ProcessorFiles
from sightline.models.grid_processor import GridProcessor, form_of_groups, group_ends
from sightline.spec import ModelSpec
from sightline.types import MediaItem, PromptForm, VideoHeader


@dataclass(frozen=True)
class GlmProcessor(GridProcessor):
    """What GLM-4.1V and those after it have in common."""

    image_pad = "<|image|>"
    video_pad = "<|video|>"
    image_budget = video_budget = ClipBudget

    @abstractmethod
    def written_time(self, seconds: float) -> str: ...

    def video_form(self, item: MediaItem) -> PromptForm:
        frame = f"<|begin_of_image|>{self.image_pad}<|end_of_image|>"  # rows of a video stand in the prompt as those of images
        return form_of_groups(item, [frame + self.written_time(first) for first, _ in group_ends(item)])


@dataclass(frozen=True)
class Glm4vProcessor(GlmProcessor):
    fps: float
    max_seconds: float  # longer clips get as many frames as one of this length

    def sample_frames(self, header: VideoHeader) -> tuple[int, ...]:
        """At a fixed rate up to max_seconds. No frame twice, but the last one to make their number even, which then counts."""
        last = header.frame_count - 1
        if header.duration <= self.max_seconds:
            count = max(math.floor(header.duration * self.fps), 1)
            indices = [min(last, math.ceil(index * header.fps / self.fps)) for index in range(count)]
        else:
            count = int(self.max_seconds * self.fps)
            if count > last:
                indices = list(range(last + 1))
            else:
                indices = [min(last, math.ceil(seconds * header.fps)) for seconds in np.linspace(0, header.duration, count)]
        return pad_frames(list(dict.fromkeys(indices)), self.frames.temporal_patch_size)

    def with_sampling(self, fps: float | None, num_frames: int | None, max_frames: int | None) -> "Glm4vProcessor":
        super().with_sampling(None, num_frames, max_frames)  # checks them
        most = max_frames or self.most_frames()  # by the server's rate
        return replace(self, fps=fps or self.fps, num_frames=num_frames, frame_limit=most)

    def most_frames(self) -> int:
        return int(self.max_seconds * self.fps) + 1

    def written_time(self, seconds: float) -> str:
        return str(int(seconds))


Processor = TypeVar("Processor", bound=GlmProcessor)


def read_patches(kind: type[Processor], files: ProcessorFiles, spec: ModelSpec, **own: Any) -> Processor:
    """A processor of this kind; `own` are the fields that it has beside images and videos."""
    mean, std, token_area = hf_config.CLIP_MEAN, hf_config.CLIP_STD, 28 * 28
    image = hf_config.read_patches(files.image, spec, (112 * 112, 15000 * token_area), mean, std)
    video = hf_config.read_patches(files.video, spec, (112 * 112, 2 * 30000 * token_area), mean, std)
    files.video.ignore("min_frames", "max_frames")
    files.done()
    return kind(image=image, video=video, **own)


def read_processor(files: ProcessorFiles, spec: ModelSpec) -> Glm4vProcessor:
    fps, max_seconds = files.video.number("fps", 2.0), files.video.number("max_duration", 300.0)
    return read_patches(Glm4vProcessor, files, spec, fps=fps, max_seconds=max_seconds)
