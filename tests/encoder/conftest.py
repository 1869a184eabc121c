"""What several tests of JPEGs need."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from encoder.jpegs import CPU, PROCESSOR, Counting, item, jpeg, soft, without_codes
from encoder.test_patches import made_video
from media.pictures import encoded
from sightline.config import MediaConfig
from sightline.encoder.jpeg_library import NvImageCodec
from sightline.media.item import item_of
from sightline.media.source import load_video
from sightline.types import MediaItem, MediaRef


@pytest.fixture
def library() -> Iterator[Counting]:
    pytest.importorskip("nvidia.nvimgcodec", reason="needs nvidia-nvimgcodec")
    made = Counting(NvImageCodec(CPU, threads=2))
    yield made
    made.close()


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as made:
        yield made


@pytest.fixture
def mixed() -> list[MediaItem]:
    files = [
        jpeg(80, 120, 1),
        encoded(soft(64, 64, 2), "PNG"),
        jpeg(80, 120, 3),
        jpeg(100, 60, 4, orientation=6),
        jpeg(70, 70, 5, mode="CMYK"),
        jpeg(80, 120, 6)[:-400],  # cut off
        jpeg(80, 120, 7),
        without_codes(jpeg(96, 96, 8)),
    ]
    missing = item(jpeg(60, 60, 9))
    missing = MediaItem(
        MediaRef("image", b"", missing.ref.digest, missing.ref.header, "gone.jpg"),
        missing.key, missing.views, missing.grids, (), (), missing.rows,
    )  # fmt: skip
    return [*(item(data) for data in files), missing, item_of(load_video(made_video(5), MediaConfig()), PROCESSOR)]
