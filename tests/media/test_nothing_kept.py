"""What a file needed goes with it: its bytes where it is refused, and the threads of its decoder."""

import gc
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from media.pictures import encoded, picture, video
from sightline.config import MediaConfig
from sightline.errors import MediaError
from sightline.media.decode import decode_image, decode_video
from sightline.media.source import load_image, load_video
from sightline.types import MediaRef, VideoHeader


@pytest.fixture(autouse=True)
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def refuse(ref: MediaRef) -> str:
    try:
        decode_image(ref) if ref.kind == "image" else decode_video(ref, range(6))
    except MediaError as error:  # pytest.raises would keep it, and so the frames it came through
        return str(error)
    raise AssertionError("it was read")


FILES = {
    "png": ("image", encoded(picture(height=60, width=80), "PNG")),
    "webp": ("image", encoded(picture(height=60, width=80), "WEBP")),
    "avif": ("image", encoded(picture(height=60, width=80), "AVIF")),
    "mp4": ("video", video(6, codec="mpeg4", container="mp4", pixel_format="yuv420p")),
}


@pytest.mark.parametrize("name", FILES)
def test_a_refused_file_is_let_go_at_once(name: str) -> None:
    """Red with Python 3.12 if the errors of decoders are turned into ours by a generator."""
    kind, data = FILES[name]
    good = (load_image if kind == "image" else load_video)(data, MediaConfig())
    ref = replace(good, data=data[: len(data) // 2])
    gone = weakref.ref(ref)
    assert "cannot be" in refuse(ref)
    del ref
    assert gone() is None


def test_a_video_that_promises_too_much_is_let_go_at_once() -> None:
    good = load_video(FILES["mp4"][1], MediaConfig())
    assert isinstance(good.header, VideoHeader)
    ref = replace(good, header=msgspec.structs.replace(good.header, width=good.header.width + 2))
    gone = weakref.ref(ref)
    assert "but the header says" in refuse(ref)
    del ref
    assert gone() is None


def test_no_thread_stays_behind_a_video() -> None:
    """Red with PyAV from 19 on if frames are converted by themselves: a thread per core stays in each thread that ever did."""
    good = load_video(FILES["mp4"][1], MediaConfig())
    with ThreadPoolExecutor(1) as pool:
        before = pool.submit(_threads).result()
        assert pool.submit(decode_video, good, range(6)).result().shape[0] == 6
        assert pool.submit(_threads).result() == before


def _threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))
