"""Views of more patches than the tower takes at once, cut between frames or tiles.

No patch attends to one of another, so the rows of a view are the rows of its pieces, one after another.
"""

from collections.abc import Iterator, Sequence

import torch

from sightline.types import Grid

Piece = tuple[list[torch.Tensor], list[Grid]]  # patches of some frames of some views, and their grids


def cut_pieces(patches: Sequence[torch.Tensor], grids: Sequence[Grid], most: int) -> Iterator[Piece]:
    """In order, each of at most `most` patches, or of a single frame that has more."""
    parts: list[torch.Tensor] = []
    shapes: list[Grid] = []
    room = most
    for item, (frames, height, width) in zip(patches, grids, strict=True):
        size, first = height * width, 0
        while first < frames:
            count = min(frames - first, room // size)
            if count == 0 and parts:
                yield parts, shapes
                parts, shapes, room = [], [], most
                continue
            count = max(1, count)
            parts.append(item[first * size : (first + count) * size])
            shapes.append((count, height, width))
            first, room = first + count, room - count * size
    if parts:
        yield parts, shapes
