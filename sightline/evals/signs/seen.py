"""Whether a model's processor leaves the pictures and clips as they are drawn."""

from collections.abc import Iterator

from sightline.evals.signs.charts import CHART_SIZE
from sightline.evals.signs.clips import CLIP_SIZE, FRAME_COUNTS
from sightline.evals.signs.generate import FPS
from sightline.evals.signs.pairs import PAIR_SIZES
from sightline.evals.signs.reading import PHONE_SIZES, SIGN_SIZES
from sightline.evals.signs.scenes import SCENE_SIZES
from sightline.spec import ProcessorSpec
from sightline.types import ImageHeader, MediaLayout, Size, VideoHeader

IMAGE_SIZES = sorted({*SIGN_SIZES, *PHONE_SIZES, *SCENE_SIZES, *PAIR_SIZES, CHART_SIZE})


def clip_header(frames: int) -> VideoHeader:
    height, width = CLIP_SIZE
    return VideoHeader("matroska", width, height, frames, FPS, frames / FPS)


def changes(processor: ProcessorSpec) -> Iterator[str]:
    """A sentence for each kind of change."""
    resized = [size for size in IMAGE_SIZES if _resized(processor.layout(ImageHeader("RGB", size[1], size[0], 1))) != [size]]
    if resized:
        names = ", ".join(f"{height}x{width}" for height, width in resized)
        yield f"this model's processor resizes images of {names} pixels (height x width)."
    if processor.video is None:
        yield "this model takes no clips."
        return
    for count in FRAME_COUNTS:
        layout = processor.layout(clip_header(count))
        if layout.frame_indices != tuple(range(count)):
            yield f"of {count} frames of a clip, this model's processor takes {list(layout.frame_indices)}."
        if (sizes := _resized(layout)) != [CLIP_SIZE]:
            names = ", ".join(f"{height}x{width}" for height, width in sizes)
            yield f"this model's processor resizes clips of {count} frames to {names} pixels (height x width)."


def _resized(layout: MediaLayout) -> list[Size]:
    return [view.resized for view in layout.views]
