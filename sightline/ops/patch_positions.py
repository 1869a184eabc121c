"""Where each patch of a batch of images stands: from the images' grids alone, on the device, however many patches there are."""

from collections.abc import Iterator
from typing import Any

import torch

from sightline.ops.dispatch import EXACT, ExampleMaker, op


def _examples(make: ExampleMaker) -> Iterator[dict[str, Any]]:
    for merge, grids in ((2, ((1, 4, 6),)), (2, ((1, 2, 2), (3, 8, 4), (1, 36, 40), (2, 6, 6))), (1, ((1, 3, 5), (2, 1, 1)))):
        starts = [0]
        for time, height, width in grids:
            starts.append(starts[-1] + time * height * width)
        yield {"grids": make.tensor(grids), "starts": make.tensor(starts), "patches": starts[-1], "merge": merge}


@op(examples=_examples, tolerances={torch.float32: EXACT})
def patch_positions(grids: torch.Tensor, starts: torch.Tensor, patches: int, merge: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(row, col) of each patch in its image, and its image's (height, width), in patches. int32 [patches, 2] each.

    grids [images, 3] int32: frames / temporal_patch, height, width; starts [images + 1] int32: where each image begins.
    Inside a frame merge x merge blocks follow one another, row by row: a patch's number in its frame splits into (block row,
    block column, row in block, column in block).
    """
    number = torch.arange(patches, dtype=torch.int32, device=grids.device)
    image = torch.searchsorted(starts[1:].contiguous(), number, right=True)
    height, width = grids[image, 1], grids[image, 2]
    inside = (number - starts[image]) % (height * width)
    block, offset = inside // (merge * merge), inside % (merge * merge)
    across = width // merge
    row = block // across * merge + offset // merge
    column = block % across * merge + offset % merge
    return torch.stack((row, column), 1).int(), torch.stack((height, width), 1).int()
