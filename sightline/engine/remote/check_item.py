"""Whether what another server wants encoded can be: its layout comes from there, so that a request's own options count."""

import itertools
import math

from sightline.errors import MediaError
from sightline.spec import PatchSpec, ProcessorSpec
from sightline.types import MOST_CANVAS_PIXELS, Grid, MediaItem, VideoHeader, View

_MOST_VIEWS = 4  # that are made of one another


def check_item(item: MediaItem, processor: ProcessorSpec) -> None:
    """Raises a MediaError where its views, grids, frames and rows do not belong together, or are more than the model takes."""
    subject = f"{item.ref.kind.capitalize()} {item.ref.source}"
    spec = processor.image if item.ref.kind == "image" else processor.video
    if spec is None:
        raise MediaError(f"{subject} cannot be encoded: the model takes no videos.")
    if not item.views or len(item.views) != len(item.grids):
        raise MediaError(f"{subject} has {len(item.views)} views and {len(item.grids)} grids.")
    groups = _check_frames(subject, item, spec)
    most = processor.most_patches_per_item()
    for view, grid in zip(item.views, item.grids, strict=True):
        _check_view(subject, view, grid, groups, spec, most * spec.patch_size**2)
    if item.patches > most:
        raise MediaError(f"{subject} has {item.patches} patches, more than the {most} that an item may have.")
    arranged = processor.arrange(item)
    made = item.patches // spec.merge_size**2 if arranged is None else len(arranged)
    if item.rows != made:
        raise MediaError(f"{subject} has {item.rows} embedding rows, but its patches make {made}.")


def _check_frames(subject: str, item: MediaItem, spec: PatchSpec) -> int:
    """How many temporal patches it has."""
    indices, header = item.frame_indices, item.ref.header
    if not isinstance(header, VideoHeader):
        if indices or item.frame_times:
            raise MediaError(f"{subject} is no video, but frames of it are asked for.")
        return 1
    ordered = all(first <= second for first, second in itertools.pairwise(indices))
    if not indices or not ordered or not (indices[0] >= 0 and indices[-1] < header.frame_count):
        raise MediaError(f"{subject} has {header.frame_count} frames, and those asked for are not among them, ascending.")
    if len(indices) % spec.temporal_patch_size or len(item.frame_times) != len(indices):
        raise MediaError(f"{subject} has {len(indices)} frames and {len(item.frame_times)} times.")
    return len(indices) // spec.temporal_patch_size


def _check_view(subject: str, view: View, grid: Grid, groups: int, spec: PatchSpec, most_pixels: int) -> None:
    chain = [view]
    while chain[-1].of is not None and len(chain) <= _MOST_VIEWS:
        chain.append(chain[-1].of)
    if len(chain) > _MOST_VIEWS:
        raise MediaError(f"{subject} has a view that is made of more than {_MOST_VIEWS - 1} others.")
    whole_frame = view.reduced is None or (view.reduced == view.tile and groups == 1 and spec.merge_size == 1)
    for one in reversed(chain):
        sizes = (spec.patch_size, spec.merge_size) if one is view else (1, 1)
        if not (_fits(one, *sizes) and (whole_frame if one is view else one.reduced is None)):
            raise MediaError(f"{subject} has a view whose picture, canvas and tiles do not fit each other.")
        # Canvases that other views are made of have no patches to be counted, and what is not on a canvas has none at all.
        most = most_pixels if one is view else MOST_CANVAS_PIXELS
        if max(math.prod(one.canvas), math.prod(one.resized)) * (one.of.tiles if one.of else 1) > most:
            made = "has a view" if one is view else "has a view that is made of one"
            raise MediaError(f"{subject} {made} of more than {most:,} pixels.")
    expected = (view.tiles * groups, view.tile[0] // spec.patch_size, view.tile[1] // spec.patch_size)
    if grid != expected:
        raise MediaError(f"{subject} has a grid of {list(grid)} patches where its view makes {list(expected)}.")


def _fits(view: View, patch_size: int, merge_size: int) -> bool:
    """Whether some of the picture is on the canvas, tiles fill that, and their whole patches can be merged."""
    if min(*view.resized, *view.canvas, *view.tile, *view.shown) <= 0:
        return False
    seen = all(-size < offset < whole for offset, size, whole in zip(view.offset, view.resized, view.canvas, strict=True))
    coloured = view.colour is None or all(0 <= value <= 255 for value in view.colour)
    tiled = not any(
        whole % tile or tile < patch_size * merge_size or tile // patch_size % merge_size
        for whole, tile in zip(view.shown, view.tile, strict=True)
    )
    return seen and coloured and tiled
