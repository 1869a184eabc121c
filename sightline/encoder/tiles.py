"""Views of a picture: resized, laid on a canvas, cut into tiles."""

import torch

from sightline.media.pillow import rows_first
from sightline.ops.pixels import resize_bicubic, resize_bilinear
from sightline.types import View


def cut_tiles(
    frames: torch.Tensor, view: View, mean: tuple[float, float, float], made: dict[View, torch.Tensor] | None = None
) -> torch.Tensor:
    """uint8 [frames, height, width, 3] to [frames, tiles, tile height, tile width, 3], tiles row by row.

    `made`: tiles of views of these frames that other views are made of; those that are missing are put there.
    """
    if view.of is None:
        return _cut(frames, view, mean)
    made = {} if made is None else made
    if view.of not in made:
        made[view.of] = cut_tiles(frames, view.of, mean, made)
    inner = made[view.of]
    tiles: torch.Tensor = _cut(inner.flatten(0, 1), view, mean).unflatten(0, inner.shape[:2]).flatten(1, 2)
    return tiles


def _cut(frames: torch.Tensor, view: View, mean: tuple[float, float, float]) -> torch.Tensor:
    height, width = view.resized
    resize = resize_bicubic if view.resample == "bicubic" else resize_bilinear
    images = resize(frames, height, width, rows_first(frames.shape[1], frames.shape[2], height, width))
    if view.canvas != view.resized:
        images = _on_canvas(images, view, mean if view.colour == "mean" else (0.0, 0.0, 0.0))
    if view.tile == view.canvas:
        return images[:, None]
    (high, wide), (rows, columns) = view.tile, view.canvas
    blocks = images.view(len(images), rows // high, high, columns // wide, wide, 3)
    return blocks.transpose(2, 3).flatten(1, 2)


def _on_canvas(images: torch.Tensor, view: View, colour: tuple[float, float, float]) -> torch.Tensor:
    canvas = images.new_empty(len(images), *view.canvas, 3)
    for channel, value in enumerate(colour):
        canvas[..., channel].fill_(int(255 * value))
    (top, left), (height, width) = view.offset, view.resized
    canvas[:, top : top + height, left : left + width] = images
    return canvas
