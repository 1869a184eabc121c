"""Files that came before: found by their bytes, by their tenant alone, within a bound."""

import asyncio
import hashlib
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from media.pictures import encoded, picture, video
from sightline.config import MediaConfig
from sightline.errors import MediaError
from sightline.media import source
from sightline.media.data_url import EmbeddedFile
from sightline.media.digests import Digester
from sightline.media.known_files import KnownFile, KnownFiles
from sightline.media.limits import RequestBudget
from sightline.media.source import AsyncLoader, load_all, load_image, load_video
from sightline.timing import StageClock
from sightline.types import ImageHeader

HEADER = ImageHeader("PNG", 2, 3, 1)
ANY = MediaConfig()
PNG = encoded(picture(), "PNG")


def known_file(data: bytes) -> KnownFile:
    return KnownFile(data, hashlib.sha256(data).digest(), HEADER)


def copied(data: bytes) -> bytes:
    return bytes(bytearray(data))


def loaded(data: bytes, files: KnownFiles, tenant: str = "", kind: str = "image", limits: MediaConfig = ANY) -> object:
    digester = Digester(0)
    ((ref,),) = load_all([(kind, data, "x")], limits, StageClock(), RequestBudget(limits), digester, files.of(tenant))
    return ref


# Red if bytes that differ anywhere are found, or the lookup is by some of them alone: an image that was made to look like
# somebody's would be answered as his.
@given(st.integers(0, 399), st.integers(1, 255))
def test_only_equal_bytes_are_found(place: int, flip: int) -> None:
    files = KnownFiles(10_000)
    data = random.Random(1).randbytes(400)
    files.keep("", "image", known_file(data))
    other = bytearray(data)
    other[place] ^= flip
    assert files.find("", "image", bytes(other)) is None
    found = files.find("", "image", copied(data))
    assert found is not None and found.data is data and found.digest == hashlib.sha256(data).digest()
    assert files.find("", "video", data) is None and files.find("another", "image", data) is None


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 7)), max_size=60))
def test_what_is_kept_is_bounded_and_what_was_used_last(uses: list[tuple[str, int]]) -> None:
    """Red if more is kept than the bound, or another file goes than the one that was not used for longest."""
    files, last = KnownFiles(1000), list[tuple[str, bytes]]()
    for tenant, number in uses:
        data = bytes([number]) * (100 + 20 * number)
        found = files.find(tenant, "image", data)
        assert (found is not None) == ((tenant, data) in last)
        if found is None:
            files.keep(tenant, "image", known_file(data))
        last = [*(each for each in last if each != (tenant, data)), (tenant, data)]
        while sum(len(each) for _, each in last) > 1000:
            last.pop(0)
        files.check_integrity()
    files.clear()
    files.check_integrity()
    assert all(files.find(tenant, "image", data) is None for tenant, data in last)


def test_files_that_are_too_large_or_alike() -> None:
    """Red if one file may drive out all others, or one that is looked up by the same is not put in the place of the other."""
    files = KnownFiles(1000)
    files.keep("", "image", known_file(bytes(251)))
    assert files.find("", "image", bytes(251)) is None
    first, second = b"\1" + bytes(200), b"\2" + bytes(200)
    for data in (first, second, first):
        files.keep("", "image", known_file(data))
        files.check_integrity()
    assert files.find("", "image", first) is not None and files.find("", "image", second) is None
    nothing = KnownFiles(0)
    nothing.keep("", "image", known_file(PNG))
    assert nothing.find("", "image", PNG) is None


def test_a_file_that_came_before_is_neither_hashed_nor_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Red if known bytes cost a digest or a header again, on either way, or their copy is held instead of the bytes kept."""
    files = KnownFiles(1_000_000)
    clip = video(3)
    wanted = load_image(PNG, ANY), load_video(clip, ANY)
    assert [loaded(PNG, files), loaded(clip, files, kind="video")] != [None, None]

    def never(*_: object) -> object:
        raise AssertionError("computed again")

    monkeypatch.setattr(source, "digest_of", never)
    monkeypatch.setattr("sightline.media.digests.digest_of", never)
    monkeypatch.setattr(source, "read_image_header", never)
    monkeypatch.setattr(source, "read_video_header", never)
    for again, ref, kind in ((copied(PNG), wanted[0], "image"), (copied(clip), wanted[1], "video")):
        found = loaded(again, files, kind=kind)
        assert (found.digest, found.header, found.source) == (ref.digest, ref.header, "x")
        assert found.data == again and found.data is not again
        loader = AsyncLoader(ANY, budget=RequestBudget(ANY), known=files.of(""))
        (over_loop,) = asyncio.run(loader.load(kind, EmbeddedFile("data:x;base64,", len(again), again), name="x"))
        assert over_loop == found and over_loop.data is found.data
    with pytest.raises(AssertionError, match="computed again"):
        loaded(copied(PNG), files, tenant="another")


def test_limits_hold_for_files_that_came_before() -> None:
    """Red if a file that was allowed once passes limits that are others now."""
    files = KnownFiles(1_000_000)
    loaded(PNG, files)
    with pytest.raises(MediaError, match="more than the 100 allowed"):
        loaded(copied(PNG), files, limits=MediaConfig(max_image_pixels=100))
    with pytest.raises(MediaError, match="allowed"):
        loaded(copied(PNG), files, limits=MediaConfig(max_request_media_mb=0))
