"""What follows from a header: grids, rows, and keys that change with everything that changes pixels."""

import dataclasses

from family_processors import make_processor, patch_spec
from media.pictures import encoded, picture, video
from sightline.config import MediaConfig
from sightline.media.item import item_of
from sightline.media.source import load_image, load_video
from sightline.spec import PatchSpec, ProcessorSpec
from sightline.types import MediaItem, MediaRef

ANY = MediaConfig()
MEAN, STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
IMAGE, VIDEO = patch_spec(65_536, 16_777_216, 16, MEAN, STD), patch_spec(4096, 25_165_824, 16, MEAN, STD)
PROCESSOR = make_processor("qwen3-vl", IMAGE, VIDEO)


def image_item(ref: MediaRef, spec: PatchSpec, family: str = "qwen3-vl") -> MediaItem:
    return item_of(ref, make_processor(family, spec))


def video_item(ref: MediaRef, processor: ProcessorSpec = PROCESSOR, **own: object) -> MediaItem:
    return item_of(ref, dataclasses.replace(processor, **own))


# Red if rows and columns are swapped or the merge is forgotten.
def test_image_item() -> None:
    ref = load_image(encoded(picture(height=720, width=1280), "PNG"), ANY)
    item = image_item(ref, IMAGE)
    assert (item.resized, item.grid, item.patches, item.rows) == ((704, 1280), (1, 44, 80), 3520, 880)
    assert (item.frame_indices, item.frame_times) == ((), ())
    assert len(item.key) == 32


# Red if padding does not reach the grid, or the pixel budget counts padded frames (5 frames count as 4, not 6).
def test_video_item() -> None:
    item = video_item(load_video(video(5, 3), ANY))
    assert item.frame_indices == (0, 1, 3, 4)
    item = video_item(load_video(video(5, 2), ANY))
    assert item.frame_indices == (0, 1, 2, 3, 4, 4)
    assert item.frame_times == (0.0, 0.5, 1.0, 1.5, 2.0, 2.0)
    assert (item.resized, item.grid, item.patches, item.rows) == ((64, 64), (3, 4, 4), 48, 12)
    tight = dataclasses.replace(VIDEO, max_pixels=4 * 64 * 64)
    assert video_item(load_video(video(5, 2), ANY), video=tight).resized == (64, 64)


# Red if a key leaves out something that changes the rows, or depends on something that does not.
def test_image_keys() -> None:
    ref = load_image(encoded(picture(height=100, width=150), "PNG"), ANY)
    key = image_item(ref, IMAGE).key
    assert image_item(load_image(ref.data, ANY), IMAGE).key == key
    assert image_item(dataclasses.replace(ref, source="another name"), IMAGE).key == key
    assert image_item(load_image(encoded(picture(height=100, width=150, seed=1), "PNG"), ANY), IMAGE).key != key
    others = [
        {"patch_size": 8, "merge_size": 4},
        {"temporal_patch_size": 1},
        {"min_pixels": 1},
        {"max_pixels": 100_000},
        {"mean": (0.5, 0.5, 0.5)},
        {"std": (0.5, 0.5, 0.5)},
        {"mean": (*MEAN[:2], MEAN[2] + 1e-9)},
    ]
    keys = {image_item(ref, dataclasses.replace(IMAGE, **other)).key for other in others}
    keys.add(image_item(ref, IMAGE, "glm-4.1v").key)  # which counts a still as two frames
    assert len(keys) == len(others) + 1 and key not in keys


# Red if two samplings of the same bytes share a key.
def test_video_keys() -> None:
    ref = load_video(video(30, 6), ANY)
    others = [
        video_item(ref, fps=1.0),
        video_item(ref, max_frames=6),
        video_item(ref, video=dataclasses.replace(VIDEO, max_pixels=20_000)),
        video_item(ref, make_processor("qwen2.5-vl", IMAGE, VIDEO)),
    ]
    assert video_item(ref).key == video_item(ref).key
    assert len({video_item(ref).key, *(item.key for item in others)}) == len(others) + 1
