"""Views of a picture: resized, laid on a canvas, cut into tiles."""

from collections.abc import Iterator, Sequence

import torch

from sightline.media.pillow import rows_first
from sightline.ops.pixels import resize_bicubic, resize_bilinear
from sightline.types import View


def canvases(frames: torch.Tensor, views: Sequence[View], mean: tuple[float, float, float]) -> Iterator[torch.Tensor]:
    """uint8 [frames, height, width, 3] to [frames, canvas height, canvas width, 3] of each view, or, of one that is made of
    another view's tiles, [frames * those, …]. What views have in common is made once: a resized picture of which neighbours are
    parts, tiles that several are made of."""
    made: dict[View, torch.Tensor] = {}
    how, images = None, frames
    for view in views:
        if how != (view.of, view.resized, view.resample):
            how = (view.of, view.resized, view.resample)
            images = _resized(frames if view.of is None else _tiles_of(frames, view.of, mean, made), view)
        yield _on_canvas(images, view, mean)


def _tiles_of(
    frames: torch.Tensor, view: View, mean: tuple[float, float, float], made: dict[View, torch.Tensor]
) -> torch.Tensor:
    """[frames * tiles, tile height, tile width, 3]; kept in `made`."""
    if view not in made:
        inner = frames if view.of is None else _tiles_of(frames, view.of, mean, made)
        made[view] = cut_tiles(_on_canvas(_resized(inner, view), view, mean), view).flatten(0, 1)
    return made[view]


def cut_tiles(canvas: torch.Tensor, view: View) -> torch.Tensor:
    """[canvases, canvas height, canvas width, 3] to [canvases, tiles, tile height, tile width, 3], tiles row by row."""
    if view.tile == view.canvas:
        return canvas[:, None]
    (high, wide), (rows, columns) = view.tile, view.canvas
    blocks = canvas.view(len(canvas), rows // high, high, columns // wide, wide, 3)
    return blocks.transpose(2, 3).flatten(1, 2)


def _resized(frames: torch.Tensor, view: View) -> torch.Tensor:
    height, width = view.resized
    resize = resize_bicubic if view.resample == "bicubic" else resize_bilinear
    return resize(frames, height, width, rows_first(frames.shape[1], frames.shape[2], height, width))


def _on_canvas(images: torch.Tensor, view: View, mean: tuple[float, float, float]) -> torch.Tensor:
    if (view.canvas, view.offset) == (view.resized, (0, 0)):
        return images
    canvas = images.new_empty(len(images), *view.canvas, 3)
    for channel, value in enumerate(view.colour or tuple(int(255 * value) for value in mean)):
        canvas[..., channel].fill_(value)
    (rows, from_rows), (columns, from_columns) = (_overlap(view, axis) for axis in (0, 1))
    canvas[:, rows, columns] = images[:, from_rows, from_columns]
    return canvas


def _overlap(view: View, axis: int) -> tuple[slice, slice]:
    """Where on the canvas the picture is along an axis, and which part of it that is."""
    start = max(0, view.offset[axis])
    end = min(view.canvas[axis], view.offset[axis] + view.resized[axis])
    return slice(start, end), slice(start - view.offset[axis], end - view.offset[axis])
