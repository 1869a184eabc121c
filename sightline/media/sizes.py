"""To which size an image or a video is resized: sides that are multiples of a factor, an area within a budget.

The one idea: round both sides to the factor; if the area then leaves [min_pixels, max_pixels], scale the original by the square
root of how far it is off and round down (or up) instead. Rounding is Python's, half to even: 720 / 32 = 22.5 becomes 22.
"""

import math

from sightline.errors import MediaError
from sightline.spec import ImageSpec, VideoSpec
from sightline.types import ImageHeader, VideoHeader

MAX_ASPECT = 200


def smart_resize(height: int, width: int, factor: int, min_pixels: int, max_pixels: int) -> tuple[int, int]:
    """(height, width) with the budget on one picture: Qwen's images, and the frames of Qwen2.5 videos."""
    return _fit(height, width, 1, 1, factor, min_pixels, max_pixels)


def smart_resize_clip(
    height: int, width: int, frames: int, temporal_factor: int, factor: int, min_pixels: int, max_pixels: int
) -> tuple[int, int]:
    """(height, width) with the budget on all frames together: GLM, where a still counts as two, and Qwen3 videos.

    Sides below the factor are enlarged first, keeping the aspect.
    """
    if height < factor or width < factor:
        scale = max(factor / height, factor / width)
        height, width = int(height * scale), int(width * scale)
    return _fit(height, width, frames, round(frames / temporal_factor) * temporal_factor, factor, min_pixels, max_pixels)


def _fit(
    height: int, width: int, frames: int, rounded_frames: int, factor: int, min_pixels: int, max_pixels: int
) -> tuple[int, int]:
    if max(height, width) > MAX_ASPECT * min(height, width):
        raise MediaError(f"A picture of {width}x{height} pixels is too narrow: the aspect ratio may be {MAX_ASPECT} at most.")
    new_height, new_width = round(height / factor) * factor, round(width / factor) * factor
    pixels = rounded_frames * new_height * new_width
    if pixels > max_pixels:
        shrink = math.sqrt(frames * height * width / max_pixels)
        new_height = max(factor, math.floor(height / shrink / factor) * factor)
        new_width = max(factor, math.floor(width / shrink / factor) * factor)
    elif pixels < min_pixels:
        grow = math.sqrt(min_pixels / (frames * height * width))
        new_height = math.ceil(height * grow / factor) * factor
        new_width = math.ceil(width * grow / factor) * factor
    return new_height, new_width


def image_size(spec: ImageSpec, header: ImageHeader) -> tuple[int, int]:
    """(height, width) of the resized image."""
    if spec.budget == "per_image":
        return smart_resize(header.height, header.width, spec.factor, spec.min_pixels, spec.max_pixels)
    frames = spec.temporal_patch_size
    return smart_resize_clip(header.height, header.width, frames, frames, spec.factor, spec.min_pixels, spec.max_pixels)


def video_size(spec: VideoSpec, header: VideoHeader, frames: int) -> tuple[int, int]:
    """(height, width) of the resized frames of a video, `frames` of which were sampled, not counting padding.

    transformers refuses a clip shorter than one temporal patch; here its frame is repeated, and counted so.
    """
    if spec.style == "qwen2_5":
        return smart_resize(header.height, header.width, spec.factor, spec.min_pixels, spec.max_pixels)
    step = spec.temporal_patch_size
    return smart_resize_clip(
        header.height, header.width, max(frames, step), step, spec.factor, spec.min_pixels, spec.max_pixels
    )
