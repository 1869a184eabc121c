"""Images and frames as one grid of patches each, merged to rows and numbered by three axes: what several families share.

A family says what its pixel budgets count, which frames of a video it takes and how it writes them.
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from sightline.errors import MediaError, ParameterError
from sightline.media.item import image_layout, video_layout
from sightline.media.sizes import PixelBudget
from sightline.prompt.positions import grid_positions
from sightline.spec import PatchSpec, ProcessorSpec
from sightline.types import FRAMES, ImageHeader, MediaItem, MediaLayout, MediaSpan, PromptForm, RunPositions, VideoHeader


@dataclass(frozen=True)
class GridProcessor(ProcessorSpec):
    image_pad: ClassVar[str]
    video_pad: ClassVar[str]
    image_budget: ClassVar[type[PixelBudget]]
    video_budget: ClassVar[type[PixelBudget]]
    num_frames: int | None = field(default=None, kw_only=True)  # that a request wants to be seen of its video
    frame_limit: int | None = field(default=None, kw_only=True)  # of a request

    @abstractmethod
    def sample_frames(self, header: VideoHeader) -> Sequence[int]:
        """Which frames of a video the model sees, ascending. Those that fill the last temporal patch need not be among them."""

    @abstractmethod
    def most_frames(self) -> int:
        """Of any video."""

    @abstractmethod
    def video_form(self, item: MediaItem) -> PromptForm: ...

    def group_times(self, item: MediaItem, groups: int) -> NDArray[np.int32]:
        """Where the groups of one run are on the time axis. By default each group is a run of its own."""
        assert groups == 1, f"a run has {groups} groups"
        return np.zeros(1, dtype=np.int32)

    def layout(self, header: ImageHeader | VideoHeader) -> MediaLayout:
        if isinstance(header, ImageHeader):
            return image_layout(self.image, self.image_budget(self.image).size(header.height, header.width, 1))
        frames = self._frames_seen(header)
        size = self.video_budget(self.frames).size(header.height, header.width, len(frames))
        return video_layout(self.frames, size, frames, header)

    def with_sampling(self, fps: float | None, num_frames: int | None, max_frames: int | None) -> "GridProcessor":
        """By default a family has no rate that could be another."""
        if fps is not None:
            raise ParameterError(
                "fps cannot be chosen with this model: its rates are fixed; use num_frames or max_frames.", "fps"
            )
        for name, value in (("num_frames", num_frames), ("max_frames", max_frames)):
            if value is not None and value > self.most_frames():
                raise ParameterError(f"{name} is {value}, but the model takes {self.most_frames()} frames at most.", name)
        return replace(self, num_frames=num_frames, frame_limit=max_frames)

    def spread(self, total: int, count: int) -> list[int]:
        """So many of all frames, where it does not matter how long they take: from the first to the last, both included."""
        return [int(index) for index in np.linspace(0, total - 1, count).round()]

    def _frames_seen(self, header: VideoHeader) -> Sequence[int]:
        count = header.frame_count
        if header.format == FRAMES:
            if count > self.most_frames():
                raise MediaError(f"A list of {count} frames is too long: the model takes {self.most_frames()} at most.")
            return range(count)
        most = self.frame_limit or self.most_frames()
        if self.num_frames is not None:
            return self.spread(count, min(self.num_frames, count, most))
        frames = self.sample_frames(header)
        return frames if self.frame_limit is None or len(frames) <= most else self.spread(count, most)

    def placeholders(self, kind: Literal["image", "video"]) -> tuple[str, ...]:
        return (self.image_pad,) if kind == "image" else (self.video_pad,)

    def prompt_form(self, item: MediaItem) -> PromptForm:
        return PromptForm(self.image_pad, (item.rows,)) if item.ref.kind == "image" else self.video_form(item)

    def positions(self, item: MediaItem, span: MediaSpan) -> RunPositions:
        merge = self.image.merge_size
        gh, gw = item.grid[1] // merge, item.grid[2] // merge
        groups, rest = divmod(span.count, gh * gw)
        assert rest == 0, f"{span.count} rows are no whole number of {gh} x {gw} groups"
        return grid_positions(self.group_times(item, groups), gh, gw)

    def most_patches_at_once(self) -> int:
        most = self.image_budget(self.image).most_pixels() // self.image.patch_size**2
        if self.video is None:
            return most
        return max(most, self.video_budget(self.video).most_pixels() // self.video.patch_size**2)

    def most_patches_per_item(self) -> int:
        most = self.most_patches_at_once()
        if self.video is None:
            return most
        clip = self.video_budget(self.video).most_clip_pixels(self.most_frames())
        return max(most, clip // (self.video.temporal_patch_size * self.video.patch_size**2))

    @property
    def frames(self) -> PatchSpec:
        assert self.video is not None, "a video came to a model that takes none"
        return self.video


def form_of_groups(item: MediaItem, written: Sequence[str]) -> PromptForm:
    """Of a video whose temporal groups are a run each, with its own text."""
    groups = item.grid[0]
    assert len(written) == groups, f"{len(written)} texts for {groups} groups"
    return PromptForm("".join(written), (item.rows // groups,) * groups)


def group_ends(item: MediaItem) -> list[tuple[float, float]]:
    """Seconds of the first and the last frame of each temporal group."""
    size, rest = divmod(len(item.frame_times), item.grid[0])
    assert size > 0 and rest == 0, f"{len(item.frame_times)} frame times for {item.grid[0]} groups"
    return [(item.frame_times[at], item.frame_times[at + size - 1]) for at in range(0, len(item.frame_times), size)]
