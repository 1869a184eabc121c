"""Shapes at which ops of the tower and of pixels are timed."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import torch

from benchmarks.measure.kernel_case import Arguments, KernelCase, Maker, Setting, norm_arguments
from sightline.models.patch_tower import HEAD_DIM_MULTIPLE
from sightline.ops.patch_positions import patch_positions
from sightline.ops.rotary import Pairing, make_patch_rotary


def _layer_norm(at: Setting) -> Iterator[KernelCase]:
    size = at.spec.patch_tower.block.hidden_size
    for rows in at.sizes.patches:
        yield KernelCase(f"{rows}x{size}", partial(norm_arguments, at, rows, size, "x"), at.itemsize * 2 * rows * size)


def _rotary_arguments(at: Setting, rows: int) -> Arguments:
    vision = at.spec.patch_tower
    size, heads = vision.block.head_dim, vision.block.num_heads
    pairing: Pairing = "adjacent" if at.device.type == "cuda" else "halves"
    rotary = make_patch_rotary(256, size, vision.rope_theta, at.device, pairing, heads, _padded_head_dim(at, size))
    return {"row_col": at.integers(0, 160, 2, rows, dtype=torch.int32).T, "rotary": rotary}


def _vision_rotary(at: Setting) -> Iterator[KernelCase]:
    block = at.spec.patch_tower.block
    heads, size = block.num_heads, block.head_dim

    def make(rows: int) -> Arguments:
        return {"qkv": at.normal(rows, 3, heads, _padded_head_dim(at, size)), **_rotary_arguments(at, rows)}

    for rows in at.sizes.patches:  # q and k are read and written
        yield KernelCase(f"{rows}x{heads}x{size}", partial(make, rows), 4 * at.itemsize * rows * heads * size)


def _padded_head_dim(at: Setting, size: int) -> int:
    return -(-size // HEAD_DIM_MULTIPLE) * HEAD_DIM_MULTIPLE if at.device.type == "cuda" else size


def _segment_attention(at: Setting) -> Iterator[KernelCase]:
    block = at.spec.patch_tower.block

    def make(lengths: tuple[int, ...]) -> Arguments:
        padded_head_dim = _padded_head_dim(at, block.head_dim)
        qkv = at.normal(sum(lengths), 3, block.num_heads, padded_head_dim)
        qkv[..., block.head_dim :] = 0
        q, k, v = qkv.unbind(1)
        starts = [0, *torch.tensor(lengths).cumsum(0).tolist()]
        return {
            "q": q,
            "k": k,
            "v": v,
            "segment_starts": at.tensor(starts),
            "segment_lengths": lengths,
            "scale": block.head_dim**-0.5,
        }

    for count, length in ((1, rows) for rows in at.sizes.patches):
        yield _attention_case(at, make, count, length)
    for count, length in at.sizes.batches:
        yield _attention_case(at, make, count, length)


def _attention_case(at: Setting, make: Callable[[tuple[int, ...]], Arguments], count: int, length: int) -> KernelCase:
    block = at.spec.patch_tower.block
    operations = 4.0 * count * length**2 * block.hidden_size
    moved = 4 * at.itemsize * count * length * block.hidden_size
    shape = f"{count} x {length}, {block.num_heads} heads of {block.head_dim}"
    return KernelCase(shape, partial(make, (length,) * count), moved, operations)


def _repeat_tail(at: Setting) -> Iterator[KernelCase]:
    """A tile and a half of queries for four parts."""
    block = at.spec.patch_tower.block
    heads, padded_head_dim = block.num_heads, _padded_head_dim(at, block.head_dim)
    for rows in at.sizes.patches:
        tail = min(288, rows // 2)

        def make(rows: int = rows, tail: int = tail) -> Arguments:
            q = at.normal(rows, 3, heads, padded_head_dim)[:, 0]
            return {"q": q, "segment_starts": at.tensor((0, rows)), "body": rows - tail, "parts": 4, "size": -(-rows // 4)}

        yield KernelCase(f"{tail} of {rows}, 4 parts", make, at.itemsize * 5 * tail * heads * padded_head_dim)


def _join_parts(at: Setting) -> Iterator[KernelCase]:
    block = at.spec.patch_tower.block
    heads, padded_head_dim = block.num_heads, _padded_head_dim(at, block.head_dim)
    for parts, rows in ((2, 448), (4, 288), (8, 192)):

        def make(parts: int = parts, rows: int = rows) -> Arguments:
            log_sums = at.normal(heads, parts * rows, dtype=torch.float32)
            out = at.normal(rows, heads, padded_head_dim)
            return {
                "attended": at.normal(parts * rows, heads, padded_head_dim),
                "log_sums": log_sums,
                "parts": parts,
                "out": out,
            }

        moved = (parts + 1) * rows * heads * padded_head_dim * at.itemsize + 4 * parts * rows * heads
        yield KernelCase(f"{parts} parts of {rows}", make, moved)


def _qkv_gemms(at: Setting) -> Iterator[KernelCase]:
    block = at.spec.patch_tower.block
    return _gemms(at, block.hidden_size, 3 * block.num_heads * _padded_head_dim(at, block.head_dim))


def _rotated_projection(at: Setting) -> Iterator[KernelCase]:
    def make(case: KernelCase) -> Arguments:
        arguments = case.make()
        return {**arguments, **_rotary_arguments(at, len(arguments["x"])), "heads": at.spec.patch_tower.block.num_heads}

    for case in _qkv_gemms(at):
        yield replace(case, make=partial(make, case))


def _linear_gelu_tanh(at: Setting) -> Iterator[KernelCase]:
    return _gemms(at, at.spec.patch_tower.block.hidden_size, at.spec.patch_tower.block.intermediate_size)


def _gemms(at: Setting, size: int, out: int) -> Iterator[KernelCase]:
    def make(rows: int) -> Arguments:
        return {"x": at.normal(rows, size), "weight": at.normal(out, size) * size**-0.5, "bias": at.normal(out)}

    for rows in _rows_of_patches(at):
        yield KernelCase(
            f"{rows}x{size} to {out}",
            partial(make, rows),
            at.itemsize * (rows * (size + out) + size * out),
            2.0 * rows * size * out,
        )


def _rows_of_patches(at: Setting) -> tuple[int, ...]:
    """Of one image, and of the largest batch."""
    return (*at.sizes.patches, max(count * length for count, length in at.sizes.batches))


def _add_linear(at: Setting) -> Iterator[KernelCase]:
    """What comes from attention, and from the MLP."""
    block = at.spec.patch_tower.block
    out = block.hidden_size

    def make(rows: int, size: int) -> Arguments:
        weight = at.normal(out, size) * size**-0.5
        return {"residual": at.normal(rows, out), "x": at.normal(rows, size), "weight": weight, "bias": None}

    for size in (block.num_heads * _padded_head_dim(at, block.head_dim), block.intermediate_size):
        for rows in _rows_of_patches(at):
            moved = at.itemsize * (rows * (size + 2 * out) + size * out)
            yield KernelCase(f"{rows}x{size} to {out}", partial(make, rows, size), moved, 2.0 * rows * size * out)


def _gelu(at: Setting) -> Iterator[KernelCase]:
    joined = at.spec.patch_tower.joined_size
    for patches in at.sizes.patches:
        yield _elementwise(at, patches // at.spec.patch_tower.merge_size**2, joined)


def _gelu_tanh(at: Setting) -> Iterator[KernelCase]:
    for patches in at.sizes.patches:
        yield _elementwise(at, patches, at.spec.patch_tower.block.intermediate_size)


def _elementwise(at: Setting, rows: int, size: int) -> KernelCase:
    return KernelCase(f"{rows}x{size}", lambda: {"x": at.normal(rows, size)}, 2 * at.itemsize * rows * size)


def _grids(at: Setting) -> Iterator[tuple[str, list[tuple[int, int, int]]]]:
    """Images of as many patches, as square as merging allows."""
    merge = at.spec.patch_tower.merge_size
    for count, patches in (*((1, patches) for patches in at.sizes.patches), *at.sizes.batches):
        height = max(merge, int(patches**0.5) // merge * merge)
        while patches % (height * merge):
            height -= merge
        yield f"{count} x {height}x{patches // height}", [(1, height, patches // height)] * count


def _patch_positions(at: Setting) -> Iterator[KernelCase]:
    for shape, grids in _grids(at):
        yield KernelCase(shape, partial(_positions_arguments, at, grids), 16 * _count(grids))


def _positions_arguments(at: Setting, grids: list[tuple[int, int, int]]) -> Arguments:
    starts = [0]
    for time, height, width in grids:
        starts.append(starts[-1] + time * height * width)
    merge = at.spec.patch_tower.merge_size
    return {"grids": at.tensor(grids), "starts": at.tensor(starts), "patches": starts[-1], "merge": merge}


def _count(grids: list[tuple[int, int, int]]) -> int:
    return sum(time * height * width for time, height, width in grids)


def _add_position_grid(at: Setting) -> Iterator[KernelCase]:
    vision, grid = at.spec.patch_tower, at.spec.patch_tower.position_grid
    side, mode, align = (grid.side, grid.mode, grid.align_corners) if grid is not None else (48, "bilinear", True)
    table = at.normal(side**2, vision.block.hidden_size)

    def make(grids: list[tuple[int, int, int]]) -> Arguments:
        row_col, grid_size = patch_positions(**_positions_arguments(at, grids))
        return {
            "hidden": at.normal(_count(grids), vision.block.hidden_size),
            "table": table,
            "row_col": row_col,
            "grid_size": grid_size,
            "mode": mode,
            "align_corners": align,
        }

    for shape, grids in _grids(at):
        moved = at.itemsize * (2 * _count(grids) + side**2) * vision.block.hidden_size
        yield KernelCase(shape, partial(make, grids), moved)


def _resize(at: Setting) -> Iterator[KernelCase]:
    def make(height: int, width: int, new_height: int, new_width: int) -> Arguments:
        images = at.integers(0, 256, 1, height, width, 3, dtype=torch.uint8)
        return {"images": images, "out_height": new_height, "out_width": new_width, "rows_first": False}

    for height, width in at.sizes.pixels:
        new_height, new_width = _fitting(at, height), _fitting(at, width)
        yield KernelCase(
            f"{height}x{width} to {new_height}x{new_width}",
            partial(make, height, width, new_height, new_width),
            3 * (height * width + new_height * new_width),
        )


def _fitting(at: Setting, side: int) -> int:
    """Never the same, or there would be nothing to do."""
    factor = at.image.factor
    return side // factor * factor + (0 if side % factor else factor)


def _patchify(at: Setting) -> Iterator[KernelCase]:
    image = at.image

    def make(height: int, width: int) -> Arguments:
        return {
            "images": at.integers(0, 256, 1, height, width, 3, dtype=torch.uint8),
            "mean": image.mean,
            "std": image.std,
            "patch_size": image.patch_size,
            "temporal_patch_size": image.temporal_patch_size,
            "merge_size": image.merge_size,
            "compact": True,
            "dtype": at.dtype,
        }

    for height, width in at.sizes.pixels:
        high, wide = _fitting(at, height), _fitting(at, width)
        yield KernelCase(f"{high}x{wide}", partial(make, high, wide), 3 * high * wide * (1 + at.itemsize))


TOWER_SHAPES: dict[str, Maker] = {
    "layer_norm": _layer_norm,
    "vision_rotary": _vision_rotary,
    "segment_attention": _segment_attention,
    "repeat_tail": _repeat_tail,
    "join_parts": _join_parts,
    "rotated_projection": _rotated_projection,
    "linear_gelu_tanh": _linear_gelu_tanh,
    "add_linear": _add_linear,
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "quick_gelu": _gelu_tanh,
    "patch_positions": _patch_positions,
    "add_position_grid": _add_position_grid,
    "resize_bicubic": _resize,
    "resize_bilinear": _resize,
    "patchify": _patchify,
}
