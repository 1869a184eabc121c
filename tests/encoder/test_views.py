"""Items of several views, padded and cut into tiles: their pixels, their patches and the order of their rows."""

import io
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from encoder.jpegs import PROCESSOR, jpeg, ref
from encoder.test_patches import CLIP_MEAN, CLIP_STD, CPU, made_picture, made_video
from family_processors import make_processor, patch_spec
from file_patches import decoded, make_patches
from sightline.config import MediaConfig
from sightline.encoder import patches, tiles
from sightline.encoder.decoding.pixels import is_shrunk, result_shape
from sightline.encoder.embeddings import arrange_embeddings, split_views
from sightline.encoder.gpu_decode import GpuDecoder
from sightline.encoder.tiles import canvases, cut_tiles
from sightline.media.item import item_of
from sightline.media.source import load_image, load_video
from sightline.ops.pixels import patchify
from sightline.types import MediaItem, View

SPEC = patch_spec(4096, 100_000, 14, CLIP_MEAN, CLIP_STD)
SMALL = View(resized=(40, 56), canvas=(56, 56), tile=(56, 56), offset=(9, 0))
LARGE = View(resized=(100, 140), canvas=(112, 168), tile=(56, 56), offset=(5, 20))
COLOUR = tuple(int(255 * value) for value in CLIP_MEAN)


def in_views(item: MediaItem, *views: View) -> MediaItem:
    groups = max(1, len(item.frame_indices) // 2)
    grids = tuple((groups * view.tiles, view.tile[0] // 14, view.tile[1] // 14) for view in views)
    return replace(item, views=views, grids=grids, rows=sum(t * h * w for t, h, w in grids) // 4)


def picture_item(*views: View) -> MediaItem:
    buffer = io.BytesIO()
    made_picture("RGB", 75, 105).save(buffer, "PNG")
    return in_views(item_of(load_image(buffer.getvalue(), MediaConfig()), make_processor("qwen3-vl", SPEC)), *views)


def slow_tiles(frame: Any, view: View) -> list[Image.Image]:
    """By Pillow alone: resized, pasted, cropped."""
    (height, width), (top, left), (high, wide) = view.resized, view.offset, view.tile
    canvas = Image.new("RGB", view.canvas[::-1], COLOUR)
    canvas.paste(Image.fromarray(frame).resize((width, height), Image.Resampling.BICUBIC), (left, top))
    corners = [(x, y) for y in range(0, view.canvas[0], high) for x in range(0, view.canvas[1], wide)]
    return [canvas.crop((x, y, x + wide, y + high)) for x, y in corners]


def stacked(images: list[Image.Image]) -> torch.Tensor:
    return torch.from_numpy(np.stack([np.asarray(image) for image in images]))


def cut(images: torch.Tensor, compact: bool) -> torch.Tensor:
    return patchify(images, SPEC.mean, SPEC.std, 14, 2, 2, compact, torch.float32)


@pytest.mark.parametrize("view", [SMALL, LARGE, View.whole((56, 84)), replace(LARGE, resized=(112, 168), offset=(0, 0))])
def test_tiles_are_pillows(view: View) -> None:
    """Red if a picture is resized to another size, laid elsewhere, on another colour, or its tiles are in another order."""
    frame = np.asarray(made_picture("RGB", 75, 105))
    (canvas,) = canvases(torch.from_numpy(frame.copy())[None], [view], SPEC.mean)
    assert torch.equal(cut_tiles(canvas, view)[0], stacked(slow_tiles(frame, view)))


PART = View(resized=(100, 140), canvas=(42, 56), tile=(42, 28), offset=(-20, -70), resample="bilinear")
BESIDE = replace(PART, offset=(10, -100), colour=(255, 250, 0))  # above and right of it is nothing


@pytest.mark.parametrize("view", [PART, BESIDE])
def test_a_view_may_be_of_a_part_of_the_picture(view: View) -> None:
    """Red if a part is taken elsewhere, by another filter, or what is beside the picture has another colour."""
    frame = np.asarray(made_picture("RGB", 75, 105))
    whole = Image.fromarray(frame).resize((140, 100), Image.Resampling.BILINEAR)
    expected = Image.new("RGB", (56, 42), view.colour or COLOUR)
    expected.paste(whole, (view.offset[1], view.offset[0]))
    (_, canvas) = canvases(torch.from_numpy(frame.copy())[None], [replace(view, offset=(0, 0)), view], SPEC.mean)
    assert torch.equal(canvas[0], torch.from_numpy(np.asarray(expected).copy()))


def test_a_reduced_view_is_what_torch_interpolates() -> None:
    """Red if the canvas is cut before it is reduced, rounded on the way, or patches change places."""
    spec = replace(SPEC, merge_size=1, temporal_patch_size=1)
    view = View((100, 140), (112, 140), (56, 28), resample="bilinear", colour=(255, 255, 255), reduced=(56, 28))
    item = replace(picture_item(SMALL), views=(view,), grids=((1, 4, 2),))
    canvas = Image.new("RGB", (140, 112), (255, 255, 255))
    canvas.paste(Image.fromarray(decoded(item)[0]).resize((140, 100), Image.Resampling.BILINEAR), (0, 0))
    pixels = (torch.from_numpy(np.asarray(canvas).copy()) / 255 - torch.tensor(CLIP_MEAN)) / torch.tensor(CLIP_STD)
    small = torch.nn.functional.interpolate(pixels.permute(2, 0, 1)[None], (56, 28), mode="bicubic")[0]
    expected = [small[:, y : y + 14, x : x + 14].flatten() for y in range(0, 56, 14) for x in (0, 14)]
    torch.testing.assert_close(make_patches(item, spec, CPU, torch.float32), torch.stack(expected), atol=1e-5, rtol=0)


BLACK = (0, 0, 0)
SQUARED = View(resized=(75, 105), canvas=(105, 105), tile=(105, 105), resample="bilinear", colour=BLACK)
WINDOWS = View(resized=(80, 50), canvas=(80, 80), tile=(40, 40), resample="bilinear", colour=BLACK, of=SQUARED)
OF_VIEWS = [
    View.whole((56, 84), "bilinear", SQUARED),
    View.whole((56, 56), "bilinear", WINDOWS),
    View(resized=(30, 40), canvas=(56, 56), tile=(28, 28), offset=(20, 3), of=WINDOWS),  # tiles of tiles
    View(resized=(75, 105), canvas=(112, 112), tile=(56, 56), resample="bilinear", colour=BLACK),
]


def slow_steps(picture: Image.Image, view: View) -> list[Image.Image]:
    """By Pillow alone, a tile at a time."""
    (height, width), (top, left), (high, wide) = view.resized, view.offset, view.tile
    found = []
    for one in [picture] if view.of is None else slow_steps(picture, view.of):
        canvas = Image.new("RGB", view.canvas[::-1], view.colour or COLOUR)
        canvas.paste(one.resize((width, height), Image.Resampling[view.resample.upper()]), (left, top))
        corners = [(x, y) for y in range(0, view.canvas[0], high) for x in range(0, view.canvas[1], wide)]
        found += [canvas.crop((x, y, x + wide, y + high)) for x, y in corners]
    return found


@pytest.mark.parametrize("view", OF_VIEWS)
def test_views_of_views_are_pillows(view: View) -> None:
    """Of two pictures at once. Red if a step is left out, its filter or its colour is another's, or tiles of the two pictures
    mix."""
    pictures = [made_picture("RGB", 75, 105), made_picture("RGB", 75, 105).transpose(Image.Transpose.ROTATE_180)]
    (canvas,) = canvases(stacked(pictures), [view], SPEC.mean)
    found = cut_tiles(canvas, view).flatten(0, 1).unflatten(0, (2, -1))
    for own, picture in zip(found, pictures, strict=True):
        assert len(own) == view.tiles
        assert torch.equal(own, stacked(slow_steps(picture, view)))


def test_what_views_are_made_of_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Red if two views of an item that begin with the same step both take it, or one that nobody shares is kept."""
    resized: list[tuple[int, int]] = []
    resize = tiles.resize_bilinear
    monkeypatch.setattr(tiles, "resize_bilinear", lambda *args: resized.append(args[1:3]) or resize(*args))
    item = picture_item(View.whole((56, 56), "bilinear", WINDOWS), View.whole((28, 28), "bilinear", SQUARED))
    frame = decoded(item)[0]
    expected = torch.cat(
        [cut(stacked([tile]), True) for view in item.views for tile in slow_steps(Image.fromarray(frame), view)]
    )
    assert torch.equal(make_patches(item, SPEC, CPU, torch.float32), expected)
    assert resized.count(SQUARED.resized) == 1 and len(resized) == 4


@pytest.mark.parametrize("compact", [True, False])
def test_patches_of_a_picture_go_view_by_view_and_tile_by_tile(compact: bool) -> None:
    """Red if a tile's patches are not those of the tile alone, or views or tiles change places."""
    item = picture_item(SMALL, LARGE)
    found_tiles = [tile for view in item.views for tile in slow_tiles(decoded(item)[0], view)]
    expected = torch.cat([cut(stacked([tile]), compact) for tile in found_tiles])
    found = make_patches(item, SPEC, CPU, torch.float32, compact)
    assert torch.equal(found, expected) and len(found) == item.patches
    assert [len(part) for part in split_views(item, found)] == [16, 6 * 16]


@pytest.mark.parametrize("group_bytes", [1, 1 << 30])
def test_tiles_of_a_video_are_clips(group_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Red if a patch spans two tiles instead of two frames, or if groups of frames come before views."""
    monkeypatch.setattr(patches, "GROUP_BYTES", group_bytes)
    item = in_views(item_of(load_video(made_video(9), MediaConfig()), make_processor("qwen3-vl", SPEC)), SMALL, LARGE)
    frames = decoded(item)
    assert len(frames) > 2
    expected = []
    for view in item.views:
        of_frames = [slow_tiles(frame, view) for frame in frames]
        for first in range(0, len(frames), 2):
            pairs = zip(of_frames[first], of_frames[first + 1], strict=True)
            expected += [cut(stacked(list(pair)), False) for pair in pairs]
    assert torch.equal(make_patches(item, SPEC, CPU, torch.float32), torch.cat(expected))


class PillowLibrary:
    name = "pillow"

    def decode(self, files: Sequence[bytes], into: Sequence[torch.Tensor]) -> list[bool]:
        for data, target in zip(files, into, strict=True):
            target.copy_(torch.from_numpy(np.array(Image.open(io.BytesIO(data)))))
        return [True] * len(files)

    def close(self) -> None: ...


def test_views_of_jpegs_that_a_library_decodes() -> None:
    """Two of one size go through the device together. Red if they mix their views, or only one view is made of them."""
    image, side = PROCESSOR.image, PROCESSOR.image.patch_size
    views = (View(resized=(64, 96), canvas=(96, 128), tile=(32, 64), offset=(3, 7)), View.whole((32, 32)))
    grids = ((6, 32 // side, 64 // side), (1, 32 // side, 32 // side))
    items = [replace(item_of(ref(jpeg(64, 96, seed)), PROCESSOR), views=views, grids=grids) for seed in (1, 2)]
    found = patches.make_patches_of_files(items, image, GpuDecoder(PillowLibrary(), CPU), torch.float32)
    for item, made in zip(items, found, strict=True):
        assert made is not None and torch.equal(made, make_patches(item, image, CPU, torch.float32))
    assert not torch.equal(found[0], found[1])  # type: ignore[arg-type]


def test_pixels_of_several_views_are_the_sources() -> None:
    """A helper process shrinks what one view shows; of several, each is made of all pixels. Red if the second view is made of
    the first one's pixels, or if memory is counted for fewer than there are."""
    one, two = picture_item(SMALL), picture_item(SMALL, LARGE)
    assert is_shrunk(one) and result_shape(one) == (1, 40, 56, 3)
    assert not is_shrunk(two) and result_shape(two) == (1, 75, 105, 3)
    for view in (View.whole((28, 28), "bilinear"), View.whole((28, 28), of=LARGE)):  # by another filter, in two steps
        assert not is_shrunk(picture_item(view)) and result_shape(picture_item(view)) == (1, 75, 105, 3)


# ---- Rows


class Tower:
    """Rows of it are numbers; two learned ones."""

    learned_embeddings: torch.Tensor | None = torch.tensor([[100.0], [200.0]])

    def num_rows(self, grid: tuple[int, int, int]) -> int:
        return grid[0] * grid[1] * grid[2] // 4


class Processor:
    def __init__(self, *orders: list[int] | None) -> None:
        self._orders = list(orders)

    def arrange(self, item: MediaItem) -> Any:
        order = self._orders.pop(0)
        return None if order is None else np.array(order, np.int64)


def arranged(tower: Tower, *orders: list[int] | None) -> list[float]:
    """Of items whose views give four rows each."""
    items = [replace(picture_item(SMALL), rows=4 if order is None else len(order)) for order in orders]
    rows = torch.arange(4.0 * len(items))[:, None]
    return arrange_embeddings(rows, items, Processor(*orders), tower)[:, 0].tolist()  # type: ignore[arg-type]


def test_rows_are_arranged_item_by_item() -> None:
    """Red if an item takes rows of another, learned rows are mistaken, or an item without an order is moved."""
    assert arranged(Tower(), None, None) == [*range(8)]
    assert arranged(Tower(), None, [3, -1, 0, 1, -2, 1]) == [0, 1, 2, 3, 7, 100, 4, 5, 200, 5]
    assert arranged(Tower(), [2], None) == [2, 4, 5, 6, 7]


@pytest.mark.parametrize("order", [[4], [0, -3]])
def test_rows_that_are_not_there_are_refused(order: list[int]) -> None:
    """On a GPU an index out of range ends the process. Red if it gets that far."""
    with pytest.raises(ValueError, match="4 rows of its views and 2 learned ones, but its family arranges rows"):
        arranged(Tower(), order)


def test_an_order_has_a_row_for_each_of_the_items() -> None:
    with pytest.raises(ValueError, match=r"has 4 rows, but its family arranges \[2\]"):
        item = picture_item(SMALL)
        arrange_embeddings(torch.zeros(4, 1), [item], Processor([0, 1]), Tower())  # type: ignore[arg-type]
