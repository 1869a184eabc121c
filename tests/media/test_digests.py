"""Digests of several files side by side are those of one after another, whoever else asks for theirs."""

import base64
import hashlib
import io
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from PIL import Image

from sightline.config import MediaConfig
from sightline.errors import MediaError
from sightline.media.digests import Digester
from sightline.media.limits import RequestBudget
from sightline.media.source import load_all, load_image
from sightline.timing import StageClock

FILES = [bytes([number]) * size for number, size in enumerate((900_000, 0, 5, 300_000, 300_001, 299_999, 1_000_000, 17))]


def image_url(shade: int, side: int = 40) -> str:
    file = io.BytesIO()
    Image.new("RGB", (side, side), (shade, 0, 0)).save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


@pytest.mark.parametrize("threads", [None, 0, 1, 3, 20])
def test_digests_are_in_order(threads: int | None) -> None:
    """Red when a file gets another's digest, or none."""
    digester = Digester(threads)
    expected = [hashlib.sha256(data).digest() for data in FILES]
    assert digester.digests(FILES) == expected
    assert digester.digests(FILES[:1]) == expected[:1] and digester.digests([]) == []
    digester.close()


def test_files_are_hashed_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    """Red when one thread does it all: then the barrier is never full."""
    together = threading.Barrier(4, timeout=20)

    def digest(data: bytes) -> bytes:
        together.wait()
        return data[:1]

    monkeypatch.setattr("sightline.media.digests.digest_of", digest)
    digester = Digester(3)
    assert digester.digests([b"a" * 300_000, b"b" * 300_000, b"c" * 300_000, b"d" * 300_000]) == [b"a", b"b", b"c", b"d"]
    digester.close()


def test_many_who_wait_for_one_digester() -> None:
    """Red when those who wait hold the threads that they wait for."""
    digester = Digester(2)
    expected = [hashlib.sha256(data).digest() for data in FILES]
    with ThreadPoolExecutor(16) as askers:
        found = list(askers.map(lambda _: digester.digests(FILES), range(64)))
    assert all(each == expected for each in found)
    digester.close()


@pytest.mark.parametrize("threads", [0, 2])
def test_files_of_a_request_are_loaded_as_one_by_one(threads: int) -> None:
    limits, digester = MediaConfig(), Digester(threads)
    urls = [image_url(shade) for shade in range(5)]
    clock = StageClock()
    found = load_all([("image", url, "") for url in urls], limits, clock, RequestBudget(limits), digester)
    assert found == [[load_image(url, limits)] for url in urls]
    assert set(clock.seconds) == {"fetch", "header"}
    with pytest.raises(MediaError, match="cannot be read"):
        sources = [("image", url, "") for url in (urls[0], "data:image/png;base64,QUJD")]
        load_all(sources, limits, clock, RequestBudget(limits), digester)
    digester.close()
