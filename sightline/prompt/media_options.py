"""What a request asks of how the model sees its media: sizes, and which frames of a video.

The names are those of vLLM's `mm_processor_kwargs` and `media_io_kwargs`. What a medium says of itself goes before what the
request says of all of them. All of it decides the layout of an item, and is so part of its key.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from sightline.errors import MediaError, ParameterError
from sightline.media.frames import at_rate
from sightline.spec import PatchSpec, ProcessorSpec
from sightline.types import FRAMES, MediaItem, MediaRef, VideoHeader

MOST_FPS = 1000.0


@dataclass(frozen=True)
class MediaOptions:
    """None: as the server has it."""

    min_pixels: int | None = None
    max_pixels: int | None = None
    fps: float | None = None  # frames to see of a second; of a list of frames, how many a second they are
    num_frames: int | None = None  # to see of the whole video
    max_frames: int | None = None

    def over(self, other: "MediaOptions") -> "MediaOptions":
        """These, and those of the other that are not given here."""
        if self.num_frames is not None:
            other = dataclasses.replace(other, fps=None)
        elif self.fps is not None:
            other = dataclasses.replace(other, num_frames=None)
        both = zip(dataclasses.astuple(self), dataclasses.astuple(other), strict=True)
        return MediaOptions(*(mine if mine is not None else theirs for mine, theirs in both))


NO_OPTIONS = MediaOptions()
SIZES = ("min_pixels", "max_pixels")
SAMPLING = ("fps", "num_frames", "max_frames")


@dataclass(frozen=True)
class RequestOptions:
    """What a request says of all its media."""

    image: MediaOptions = NO_OPTIONS
    video: MediaOptions = NO_OPTIONS

    def of(self, kind: str, own: MediaOptions = NO_OPTIONS) -> MediaOptions:
        return own.over(self.video if kind == "video" else self.image)


NO_REQUEST_OPTIONS = RequestOptions()


def request_options(
    mm_processor_kwargs: Mapping[str, Any] | None = None, media_io_kwargs: Mapping[str, Any] | None = None
) -> RequestOptions:
    processor = options_from(mm_processor_kwargs or {}, (*SIZES, *SAMPLING), "mm_processor_kwargs")
    loading = dict(media_io_kwargs or {})
    video = options_from(loading.pop("video", None) or {}, SAMPLING, "media_io_kwargs.video")
    for name, value in loading.items():
        if value:
            raise ParameterError(f"media_io_kwargs has {name!r}; only 'video' has options.", "media_io_kwargs")
    for name in SAMPLING:
        one, other = getattr(processor, name), getattr(video, name)
        if one is not None and other is not None and one != other:
            raise ParameterError(f"{name} is {one} in mm_processor_kwargs and {other} in media_io_kwargs.video.", name)
    return RequestOptions(MediaOptions(processor.min_pixels, processor.max_pixels), video.over(processor))


def options_from(given: Mapping[str, Any], allowed: tuple[str, ...], where: str) -> MediaOptions:
    """Checked by themselves; what they mean for a model is checked by `with_options`."""
    for name, value in given.items():
        if value is None:
            continue
        if name not in allowed:
            raise ParameterError(f"{where} has {name!r}, which is not supported; there is {', '.join(allowed)}.", name)
        if isinstance(value, bool) or not isinstance(value, float | int if name == "fps" else int) or not value > 0:
            raise ParameterError(f"{name} is {value!r}, but must be a {'' if name == 'fps' else 'whole '}number above 0.", name)
    options = MediaOptions(**{name: value for name, value in given.items() if value is not None})
    if options.fps is not None and options.fps > MOST_FPS:
        raise ParameterError(f"fps is {options.fps}, but at most {MOST_FPS:g} are allowed.", "fps")
    if options.fps is not None and options.num_frames is not None:
        raise ParameterError(
            "fps and num_frames are both given; use fps with max_frames, which bounds it, or num_frames.", "fps"
        )
    return options


def with_options(ref: MediaRef, processor: ProcessorSpec, options: MediaOptions) -> tuple[MediaRef, ProcessorSpec]:
    """The medium and the processor as the request wants them; ParameterError if the server's limits do not allow it."""
    if options == NO_OPTIONS:
        return ref, processor
    own = processor
    if options.min_pixels is not None or options.max_pixels is not None:
        own = _with_sizes(processor, ref.kind, options)
    if isinstance(ref.header, VideoHeader):
        if ref.header.format == FRAMES:
            return _with_rate(ref, ref.header, options), own
        if any(value is not None for value in (options.fps, options.num_frames, options.max_frames)):
            own = own.with_sampling(options.fps, options.num_frames, options.max_frames)
    return ref, own


def check_planned(item: MediaItem, server: ProcessorSpec) -> None:
    """Whether the memory that the server planned for any item is enough for one whose options were the request's."""
    at_once = max(rows * columns for _, rows, columns in item.grids)
    if item.patches > server.most_patches_per_item() or at_once > server.most_patches_at_once():
        raise MediaError(
            f"{item.ref.kind.capitalize()} {item.ref.source} has {item.patches:,} patches in these sizes, more than the "
            f"{server.most_patches_per_item():,} for which the server has memory; ask for fewer pixels or frames."
        )


def _with_sizes(processor: ProcessorSpec, kind: Literal["image", "video"], options: MediaOptions) -> ProcessorSpec:
    spec = processor.image if kind == "image" else processor.video
    assert spec is not None, "a video that the model does not take was refused"
    least = options.min_pixels if options.min_pixels is not None else spec.min_pixels
    most = options.max_pixels if options.max_pixels is not None else spec.max_pixels
    _check_sizes(spec, kind, least, most)
    return dataclasses.replace(processor, **{kind: dataclasses.replace(spec, min_pixels=least, max_pixels=most)})


def _check_sizes(spec: PatchSpec, kind: str, least: int, most: int) -> None:
    for name, value in (("min_pixels", least), ("max_pixels", most)):
        if not spec.min_pixels <= value <= spec.max_pixels:
            raise ParameterError(
                f"{name} is {value}, but must be between the server's {spec.min_pixels} and {spec.max_pixels} for {kind}s.",
                name,
            )
    if least > most:
        raise ParameterError(f"min_pixels is {least}, above max_pixels, {most}.", "min_pixels")


def _with_rate(ref: MediaRef, header: VideoHeader, options: MediaOptions) -> MediaRef:
    """Frames that were chosen by whoever sent them are all seen; what can be said of them is how many a second they are."""
    count = header.frame_count
    for name, value, good in (
        ("num_frames", options.num_frames, options.num_frames == count),
        ("max_frames", options.max_frames, count <= (options.max_frames or count)),
    ):
        if value is not None and not good:
            raise ParameterError(
                f"{name} is {value}, but video {ref.source} is a list of {count} frames; send those to be seen.", name
            )
    if options.fps is None:
        return ref
    return dataclasses.replace(ref, header=at_rate(header, options.fps))
