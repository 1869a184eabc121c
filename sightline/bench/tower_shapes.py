"""Shapes at which ops of the tower and of pixels are timed."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import torch

from sightline.bench.kernel_case import Arguments, Case, Maker, Setting, norm_arguments
from sightline.models.tower import HEAD_PLACES
from sightline.ops.places import patch_places
from sightline.ops.rotary import Pairing, make_patch_rotary


def _layer_norm(at: Setting) -> Iterator[Case]:
    size = at.spec.vision.hidden_size
    for rows in at.sizes.patches:
        yield Case(f"{rows}x{size}", partial(norm_arguments, at, rows, size, "x"), at.itemsize * 2 * rows * size)


def _rotary_arguments(at: Setting, rows: int) -> Arguments:
    vision = at.spec.vision
    pairing: Pairing = "adjacent" if at.device.type == "cuda" else "halves"
    places = _places(at, vision.head_dim)
    rotary = make_patch_rotary(256, vision.head_dim, vision.rope_theta, at.device, pairing, vision.num_heads, places)
    return {"row_col": at.integers(0, 160, 2, rows, dtype=torch.int32).T, "rotary": rotary}


def _vision_rotary(at: Setting) -> Iterator[Case]:
    vision = at.spec.vision
    heads, size = vision.num_heads, vision.head_dim

    def make(rows: int) -> Arguments:
        return {"qkv": at.normal(rows, 3, heads, _places(at, size)), **_rotary_arguments(at, rows)}

    for rows in at.sizes.patches:  # q and k are read and written
        yield Case(f"{rows}x{heads}x{size}", partial(make, rows), 4 * at.itemsize * rows * heads * size)


def _places(at: Setting, size: int) -> int:
    return -(-size // HEAD_PLACES) * HEAD_PLACES if at.device.type == "cuda" else size


def _segment_attention(at: Setting) -> Iterator[Case]:
    vision = at.spec.vision

    def make(lengths: tuple[int, ...]) -> Arguments:
        places = _places(at, vision.head_dim)
        qkv = at.normal(sum(lengths), 3, vision.num_heads, places)
        qkv[..., vision.head_dim :] = 0
        q, k, v = qkv.unbind(1)
        starts = [0, *torch.tensor(lengths).cumsum(0).tolist()]
        return {
            "q": q,
            "k": k,
            "v": v,
            "segment_starts": at.tensor(starts),
            "segment_lengths": lengths,
            "scale": vision.head_dim**-0.5,
        }

    for count, length in ((1, rows) for rows in at.sizes.patches):
        yield _attention_case(at, make, count, length)
    for count, length in at.sizes.batches:
        yield _attention_case(at, make, count, length)


def _attention_case(at: Setting, make: Callable[[tuple[int, ...]], Arguments], count: int, length: int) -> Case:
    vision = at.spec.vision
    operations = 4.0 * count * length**2 * vision.hidden_size
    moved = 4 * at.itemsize * count * length * vision.hidden_size
    shape = f"{count} x {length}, {vision.num_heads} heads of {vision.head_dim}"
    return Case(shape, partial(make, (length,) * count), moved, operations)


def _repeat_tail(at: Setting) -> Iterator[Case]:
    """A tile and a half of queries for four parts."""
    vision = at.spec.vision
    heads, places = vision.num_heads, _places(at, vision.head_dim)
    for rows in at.sizes.patches:
        tail = min(288, rows // 2)

        def make(rows: int = rows, tail: int = tail) -> Arguments:
            q = at.normal(rows, 3, heads, places)[:, 0]
            return {"q": q, "segment_starts": at.tensor((0, rows)), "body": rows - tail, "parts": 4, "size": -(-rows // 4)}

        yield Case(f"{tail} of {rows}, 4 parts", make, at.itemsize * 5 * tail * heads * places)


def _join_parts(at: Setting) -> Iterator[Case]:
    vision = at.spec.vision
    heads, places = vision.num_heads, _places(at, vision.head_dim)
    for parts, rows in ((2, 448), (4, 288), (8, 192)):

        def make(parts: int = parts, rows: int = rows) -> Arguments:
            log_sums = at.normal(heads, parts * rows, dtype=torch.float32)
            out = at.normal(rows, heads, places)
            return {"attended": at.normal(parts * rows, heads, places), "log_sums": log_sums, "parts": parts, "out": out}

        moved = (parts + 1) * rows * heads * places * at.itemsize + 4 * parts * rows * heads
        yield Case(f"{parts} parts of {rows}", make, moved)


def _tower_linear(at: Setting) -> Iterator[Case]:
    vision = at.spec.vision
    return _products(at, vision.hidden_size, 3 * vision.num_heads * _places(at, vision.head_dim))


def _rotated_projection(at: Setting) -> Iterator[Case]:
    def make(case: Case) -> Arguments:
        arguments = case.make()
        return {**arguments, **_rotary_arguments(at, len(arguments["x"])), "heads": at.spec.vision.num_heads}

    for case in _tower_linear(at):
        yield replace(case, make=partial(make, case))


def _linear_gelu_tanh(at: Setting) -> Iterator[Case]:
    return _products(at, at.spec.vision.hidden_size, at.spec.vision.intermediate_size)


def _products(at: Setting, size: int, out: int) -> Iterator[Case]:
    def make(rows: int) -> Arguments:
        return {"x": at.normal(rows, size), "weight": at.normal(out, size) * size**-0.5, "bias": at.normal(out)}

    for rows in _rows_of_patches(at):
        yield Case(
            f"{rows}x{size} to {out}",
            partial(make, rows),
            at.itemsize * (rows * (size + out) + size * out),
            2.0 * rows * size * out,
        )


def _rows_of_patches(at: Setting) -> tuple[int, ...]:
    """Of one image, and of the largest batch."""
    return (*at.sizes.patches, max(count * length for count, length in at.sizes.batches))


def _add_linear(at: Setting) -> Iterator[Case]:
    """What comes from attention, and from the MLP."""
    vision = at.spec.vision
    out = vision.hidden_size

    def make(rows: int, size: int) -> Arguments:
        weight = at.normal(out, size) * size**-0.5
        return {"total": at.normal(rows, out), "x": at.normal(rows, size), "weight": weight, "bias": None}

    for size in (vision.num_heads * _places(at, vision.head_dim), vision.intermediate_size):
        for rows in _rows_of_patches(at):
            moved = at.itemsize * (rows * (size + 2 * out) + size * out)
            yield Case(f"{rows}x{size} to {out}", partial(make, rows, size), moved, 2.0 * rows * size * out)


def _gelu(at: Setting) -> Iterator[Case]:
    joined = at.spec.vision.hidden_size * at.spec.vision.merge_size**2
    for patches in at.sizes.patches:
        yield _elementwise(at, patches // at.spec.vision.merge_size**2, joined)


def _gelu_tanh(at: Setting) -> Iterator[Case]:
    for patches in at.sizes.patches:
        yield _elementwise(at, patches, at.spec.vision.intermediate_size)


def _elementwise(at: Setting, rows: int, size: int) -> Case:
    return Case(f"{rows}x{size}", lambda: {"x": at.normal(rows, size)}, 2 * at.itemsize * rows * size)


def _grids(at: Setting) -> Iterator[tuple[str, list[tuple[int, int, int]]]]:
    """Images of as many patches, as square as merging allows."""
    merge = at.spec.vision.merge_size
    for count, patches in (*((1, patches) for patches in at.sizes.patches), *at.sizes.batches):
        height = max(merge, int(patches**0.5) // merge * merge)
        while patches % (height * merge):
            height -= merge
        yield f"{count} x {height}x{patches // height}", [(1, height, patches // height)] * count


def _patch_places(at: Setting) -> Iterator[Case]:
    for shape, grids in _grids(at):
        yield Case(shape, partial(_places_arguments, at, grids), 16 * _count(grids))


def _places_arguments(at: Setting, grids: list[tuple[int, int, int]]) -> Arguments:
    starts = [0]
    for time, height, width in grids:
        starts.append(starts[-1] + time * height * width)
    merge = at.spec.vision.merge_size
    return {"grids": at.tensor(grids), "starts": at.tensor(starts), "patches": starts[-1], "merge": merge}


def _count(grids: list[tuple[int, int, int]]) -> int:
    return sum(time * height * width for time, height, width in grids)


def _add_position_grid(at: Setting) -> Iterator[Case]:
    vision, grid = at.spec.vision, at.spec.vision.position_grid
    side, mode, align = (grid.side, grid.mode, grid.align_corners) if grid is not None else (48, "bilinear", True)
    table = at.normal(side**2, vision.hidden_size)

    def make(grids: list[tuple[int, int, int]]) -> Arguments:
        row_col, grid_size = patch_places(**_places_arguments(at, grids))
        return {
            "hidden": at.normal(_count(grids), vision.hidden_size),
            "table": table,
            "row_col": row_col,
            "grid_size": grid_size,
            "mode": mode,
            "align_corners": align,
        }

    for shape, grids in _grids(at):
        moved = at.itemsize * (2 * _count(grids) + side**2) * vision.hidden_size
        yield Case(shape, partial(make, grids), moved)


def _resize_bicubic(at: Setting) -> Iterator[Case]:
    def make(height: int, width: int, new_height: int, new_width: int) -> Arguments:
        images = at.integers(0, 256, 1, height, width, 3, dtype=torch.uint8)
        return {"images": images, "out_height": new_height, "out_width": new_width, "rows_first": False}

    for height, width in at.sizes.pixels:
        new_height, new_width = _fitting(at, height), _fitting(at, width)
        yield Case(
            f"{height}x{width} to {new_height}x{new_width}",
            partial(make, height, width, new_height, new_width),
            3 * (height * width + new_height * new_width),
        )


def _fitting(at: Setting, side: int) -> int:
    """Never the same, or there would be nothing to do."""
    factor = at.image.factor
    return side // factor * factor + (0 if side % factor else factor)


def _patchify(at: Setting) -> Iterator[Case]:
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
        yield Case(f"{high}x{wide}", partial(make, high, wide), 3 * high * wide * (1 + at.itemsize))


TOWER_SHAPES: dict[str, Maker] = {
    "layer_norm": _layer_norm,
    "vision_rotary": _vision_rotary,
    "segment_attention": _segment_attention,
    "repeat_tail": _repeat_tail,
    "join_parts": _join_parts,
    "tower_linear": _tower_linear,
    "rotated_projection": _rotated_projection,
    "linear_gelu_tanh": _linear_gelu_tanh,
    "add_linear": _add_linear,
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "patch_places": _patch_places,
    "add_position_grid": _add_position_grid,
    "resize_bicubic": _resize_bicubic,
    "patchify": _patchify,
}
