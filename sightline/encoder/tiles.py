"""Views of a picture: resized, laid on a canvas, cut into tiles."""

import torch

from sightline.media.pillow import rows_first
from sightline.ops.pixels import resize_bicubic
from sightline.types import View


def cut_tiles(frames: torch.Tensor, view: View, mean: tuple[float, float, float]) -> torch.Tensor:
    """uint8 [frames, height, width, 3] to [frames, tiles, tile height, tile width, 3], tiles row by row."""
    height, width = view.resized
    images = resize_bicubic(frames, height, width, rows_first(frames.shape[1], frames.shape[2], height, width))
    if view.canvas != view.resized:
        images = _on_canvas(images, view, mean)
    if view.tile == view.canvas:
        return images[:, None]
    (high, wide), (rows, columns) = view.tile, view.canvas
    blocks = images.view(len(images), rows // high, high, columns // wide, wide, 3)
    return blocks.transpose(2, 3).flatten(1, 2)


def _on_canvas(images: torch.Tensor, view: View, mean: tuple[float, float, float]) -> torch.Tensor:
    canvas = images.new_empty(len(images), *view.canvas, 3)
    for channel, value in enumerate(mean):
        canvas[..., channel].fill_(int(255 * value))
    (top, left), (height, width) = view.offset, view.resized
    canvas[:, top : top + height, left : left + width] = images
    return canvas
