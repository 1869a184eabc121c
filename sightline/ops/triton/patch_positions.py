"""Places of patches: each finds its image by bisection."""

import torch
import triton
import triton.language as tl

from sightline.ops.patch_positions import patch_positions
from sightline.ops.triton import runs_here

_BLOCK = 256


@triton.jit(do_not_specialize=["images", "patches", "steps"])
def _positions(grids, starts, row_col, sizes, images, patches, steps, merge: tl.constexpr, BLOCK: tl.constexpr):
    number = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = number < patches
    low = tl.zeros([BLOCK], tl.int32)  # the image is in [low, high)
    high = low + images
    for _ in range(steps):
        middle = (low + high) // 2
        beyond = tl.load(starts + middle, mask=inside, other=0) <= number
        low = tl.where(beyond, middle, low)
        high = tl.where(beyond, high, middle)
    height = tl.load(grids + 3 * low + 1, mask=inside, other=merge)
    width = tl.load(grids + 3 * low + 2, mask=inside, other=merge)
    here = (number - tl.load(starts + low, mask=inside, other=0)) % (height * width)
    block = here // (merge * merge)
    offset = here % (merge * merge)
    across = width // merge
    tl.store(row_col + 2 * number, block // across * merge + offset // merge, mask=inside)
    tl.store(row_col + 2 * number + 1, block % across * merge + offset % merge, mask=inside)
    tl.store(sizes + 2 * number, height, mask=inside)
    tl.store(sizes + 2 * number + 1, width, mask=inside)


@patch_positions.kernel("triton", when=lambda grids, starts, patches, merge: runs_here(grids) and patches > 0)
def patch_positions_triton(
    grids: torch.Tensor, starts: torch.Tensor, patches: int, merge: int
) -> tuple[torch.Tensor, torch.Tensor]:
    images = len(grids)
    row_col = torch.empty(patches, 2, dtype=torch.int32, device=grids.device)
    sizes = torch.empty_like(row_col)
    steps = images.bit_length()
    _positions[(triton.cdiv(patches, _BLOCK),)](grids, starts, row_col, sizes, images, patches, steps, merge, _BLOCK)
    return row_col, sizes
