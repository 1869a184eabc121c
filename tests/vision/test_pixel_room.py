"""Pixels on the device at a time: bounded, whatever comes, and nobody waits for ever."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from PIL import Image

from sightline.config import MediaConfig
from sightline.media.source import load_image
from sightline.prompt.request import make_item
from sightline.timing import StageClock
from sightline.vision import patches as patches_module
from sightline.vision.patch_maker import PatchMaker
from sightline.vision.pixel_room import PixelRoom
from vision.jpegs import CPU, PROCESSOR


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as made:
        yield made


class Gauge:
    """How much was there at a time, at most."""

    def __init__(self) -> None:
        self.now = self.most = 0
        self._lock = threading.Lock()

    def add(self, count: int) -> None:
        with self._lock:
            self.now += count
            self.most = max(self.most, self.now)


@pytest.mark.parametrize(("sizes", "most"), [([40] * 20, 80), ([30, 70, 100] * 6, 100), ([250, 10, 10, 10, 90] * 4, 250)])
def test_no_more_than_there_is_room_for(pool: ThreadPoolExecutor, sizes: list[int], most: int) -> None:
    room, gauge = PixelRoom(100), Gauge()

    def bring(size: int) -> None:
        with room.taken(size):
            gauge.add(size)
            time.sleep(0.002)
            gauge.add(-size)

    list(pool.map(bring, sizes))
    assert 0 < gauge.most <= most and gauge.now == 0


def test_what_fails_gives_its_room_back() -> None:
    room = PixelRoom(10)
    with pytest.raises(ValueError, match="no"), room.taken(10):
        raise ValueError("no")
    with room.taken(10):
        pass


def test_threads_that_make_patches_share_it(pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    """Red when a step of many large pictures has the pixels of all of them on the device."""
    gauge, cut = Gauge(), patches_module.cut

    def slow_cut(frames: torch.Tensor, *arguments: Any) -> torch.Tensor:
        gauge.add(frames.nbytes)
        time.sleep(0.005)
        gauge.add(-frames.nbytes)
        return cut(frames, *arguments)

    monkeypatch.setattr(patches_module, "cut", slow_cut)
    monkeypatch.setattr("sightline.vision.patch_maker.GROUP_BYTES", 3 * 200 * 200 * 2)
    pictures = [Image.new("RGB", (200, 200), (number, 0, 0)) for number in range(12)]
    items = [make_item(load_image(picture, MediaConfig()), PROCESSOR) for picture in pictures]
    made, _ = PatchMaker(PROCESSOR, CPU, torch.float32, True, pool).make(items, StageClock())
    assert all(isinstance(one, torch.Tensor) for one in made)
    assert gauge.most == 3 * 200 * 200 * 2
