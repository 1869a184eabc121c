"""A whole picture on few pixels, as torch interpolates: four taps an axis whatever the ratio, never rounded to uint8."""

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F

from sightline.ops.dispatch import ExampleMaker, Tolerance, op
from sightline.ops.pixels import check_images, normalised_values


def _examples(make: ExampleMaker) -> Iterator[dict[str, Any]]:
    for frames, height, width in ((1, 112, 84), (2, 28, 28), (1, 70, 300)):
        yield {
            "images": make.integers(0, 256, frames, height, width, 3, dtype=torch.uint8),
            "height": 56,
            "width": 28,
            "mean": (0.5, 0.4, 0.3),
            "std": (0.5, 0.6, 0.7),
            "patch_size": 14,
            "dtype": make.dtype,
        }


@op(examples=_examples, tolerances={torch.float32: Tolerance(1e-5, 1e-5), torch.bfloat16: Tolerance(1.6e-2, 1.6e-2)})
def thumbnail_patches(
    images: torch.Tensor,
    height: int,
    width: int,
    mean: tuple[float, float, float],
    std: tuple[float, float, float],
    patch_size: int,
    dtype: torch.dtype,
) -> torch.Tensor:
    """uint8 [frames, h, w, 3] normalised, interpolated to (height, width) and cut into patches, row by row.

    Returns dtype [frames * rows * columns, 3 * patch_size²], features in the order (channel, y, x), as patchify's of stills.
    The interpolation is F.interpolate(mode="bicubic") without antialiasing; values beyond the range of pixels stay.
    """
    check_images(images)
    table = normalised_values(mean, std, images.device, torch.float32).view(3, 256)
    # Channel by channel: the canvas is large, and in floats four times as large.
    values = (table[channel][images[..., channel].int()][:, None] for channel in range(3))
    channels = [F.interpolate(value, size=(height, width), mode="bicubic", align_corners=False) for value in values]
    small = torch.cat(channels, 1)
    rows = small.unflatten(3, (-1, patch_size)).unflatten(2, (-1, patch_size))  # [frames, 3, rows, y, columns, x]
    patches: torch.Tensor = rows.permute(0, 2, 4, 1, 3, 5).reshape(-1, 3 * patch_size**2)
    return patches.to(dtype)
