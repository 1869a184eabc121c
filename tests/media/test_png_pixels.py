"""Pixels of PNG files by zlib-ng and ffmpeg: the same as Pillow's, or Pillow's; and the same refusals."""

import io
import itertools
import random
import struct
import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image
from PIL.PngImagePlugin import PngImageFile

from assets import asset_files
from media.mutants import damaged
from media.pictures import encoded, exif, noise, picture
from sightline.bench.load.screens import screen
from sightline.config import MediaConfig
from sightline.errors import MediaError
from sightline.media import decode, png_pixels
from sightline.media.decode import decode_image
from sightline.media.decoder_errors import DecodeCancelled
from sightline.media.png import CHANNELS, SIGNATURE, written
from sightline.media.source import load_image

pytest.importorskip("zlib_ng", reason="zlib-ng is not installed")

ANY = MediaConfig()
DEPTHS = {0: (1, 2, 4, 8, 16), 2: (8, 16), 3: (1, 2, 4, 8), 4: (8, 16), 6: (8, 16)}  # bits a sample, by colour type
KINDS = [(bits, colour) for colour, depths in DEPTHS.items() for bits in depths]
PALETTE = np.random.default_rng(5).integers(0, 256, 768, dtype=np.uint8).tobytes()


@pytest.fixture(autouse=True)
def _small_ones_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(png_pixels, "LEAST_BYTES", 1)


def header(width: int, height: int, bits: int, colour: int, interlaced: int = 0) -> bytes:
    return written(b"IHDR", struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, interlaced))


def row_bytes(width: int, bits: int, colour: int) -> int:
    return -(-width * bits * CHANNELS[colour] // 8)


def png(width: int, height: int, bits: int, colour: int, rows: bytes, pieces: int = 1, chunks: bytes = b"") -> bytes:
    """`rows` are filtered ones, as they are deflated."""
    deflated = zlib.compress(rows)
    cuts = [len(deflated) * number // pieces for number in range(pieces + 1)]
    pixels = b"".join(written(b"IDAT", deflated[start:end]) for start, end in itertools.pairwise(cuts))
    palette = written(b"PLTE", PALETTE[: 3 << bits]) if colour == 3 else b""
    return SIGNATURE + header(width, height, bits, colour) + palette + chunks + pixels + written(b"IEND", b"")


def any_rows(width: int, height: int, bits: int, colour: int, seed: int, filters: tuple[int, ...]) -> bytes:
    """Any bytes are a row of any filter; many are zero, as in screenshots."""
    chance = np.random.default_rng(seed)
    rows = chance.integers(0, 256, (height, 1 + row_bytes(width, bits, colour)), dtype=np.uint8)
    rows[chance.random(rows.shape) < chance.random()] = 0
    rows[:, 0] = chance.choice(filters, height)
    return rows.tobytes()


def by_pillow(data: bytes) -> NDArray[np.uint8]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decode, "png_pixels", lambda *_: None)
        return np.array(decode_image(load_image(data, ANY)))


def result(make: Callable[[bytes], NDArray[np.uint8]], data: bytes) -> object:
    """Pixels as bytes, or the sentence of the refusal."""
    try:
        found = make(data)
    except MediaError as error:
        return str(error)
    return found.shape, found.tobytes()


def is_ours(data: bytes) -> bool:
    with Image.open(io.BytesIO(data)) as image:
        return png_pixels.png_pixels(image, data, lambda: False) is not None


# Red if a filter is undone otherwise than by Pillow, at the first row, in the first pixel or where sums wrap; if samples of
# some depth or kind are read otherwise; or if files of these kinds are left to Pillow, which would make the test say nothing.
@settings(max_examples=120, deadline=None)
@given(
    kind=st.sampled_from(KINDS),
    width=st.integers(1, 70),
    height=st.integers(1, 12),
    seed=st.integers(0, 10**6),
    filters=st.sampled_from([(0,), (1,), (2,), (3,), (4,), (0, 1, 2, 3, 4)]),
    pieces=st.integers(1, 3),
)
def test_all_kinds_and_filters(
    kind: tuple[int, int], width: int, height: int, seed: int, filters: tuple[int, ...], pieces: int
) -> None:
    bits, colour = kind
    data = png(width, height, bits, colour, any_rows(width, height, bits, colour, seed, filters), pieces)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(png_pixels, "LEAST_BYTES", 1)
        assert is_ours(data)
        assert np.array_equal(decode_image(load_image(data, ANY)), by_pillow(data))


# Red if a chunk in front of the pixels that says something about colours changes them, or keeps a file from being ours.
@pytest.mark.filterwarnings("ignore:Palette images")
@pytest.mark.parametrize("kind", KINDS)
def test_chunks_about_colours(kind: tuple[int, int]) -> None:
    bits, colour = kind
    chunks = written(b"gAMA", struct.pack(">I", 30_000)) + written(b"sRGB", b"\1") + written(b"pHYs", bytes(9))
    chunks += written(b"iCCP", b"name\0\0" + zlib.compress(b"no profile"))
    if colour in (0, 2, 3):
        chunks += written(b"tRNS", {0: bytes(2), 2: bytes(6), 3: bytes(range(1 << min(bits, 8)))}[colour])
    data = png(37, 9, bits, colour, any_rows(37, 9, bits, colour, 3, (0, 1, 2, 3, 4)), chunks=chunks)
    assert is_ours(data) and np.array_equal(decode_image(load_image(data, ANY)), by_pillow(data))


@pytest.mark.filterwarnings("ignore:Palette images")
@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "I;16"])
@pytest.mark.parametrize("orientation", [1, 3, 6])
def test_what_pillow_writes(mode: str, orientation: int) -> None:
    """Red if orientation is lost on the way, or a mode is not like Pillow's."""
    data = encoded(picture(mode, 40, 70), "PNG", exif=exif(orientation))
    assert is_ours(data)
    found = decode_image(load_image(data, ANY))
    assert found.shape == ((70, 40, 3) if orientation == 6 else (40, 70, 3)) and np.array_equal(found, by_pillow(data))


def test_a_screenshot_is_ours_and_larger_strips_fit_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Red if a drawn screen is left to Pillow, or strips of a picture overlap or leave rows out."""
    monkeypatch.setattr(png_pixels, "_STRIP_PIXELS", 3000)
    pixels = screen(np.random.default_rng(1), 640, 361)
    for mode in ("RGB", "RGBA", "P"):
        data = encoded(Image.fromarray(pixels).convert(mode), "PNG")
        assert is_ours(data) and np.array_equal(decode_image(load_image(data, ANY)), by_pillow(data))


def test_pillow_decodes_nothing_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Red if a plain file goes through Pillow's own decoder as well, which would take all the time that is won."""
    data = encoded(picture("RGB", 40, 70), "PNG")
    wanted = by_pillow(data)

    def never_called(self: PngImageFile) -> None:
        raise AssertionError("Pillow decodes")

    monkeypatch.setattr(PngImageFile, "load_prepare", never_called)
    assert np.array_equal(decode_image(load_image(data, ANY)), wanted)


# ---- What is Pillow's


def two(width: int = 20, height: int = 10, bits: int = 8, colour: int = 2) -> tuple[bytes, bytes]:
    """Deflated rows of zeros, and the file's beginning."""
    rows = zlib.compress(bytes((1 + row_bytes(width, bits, colour)) * height))
    return rows, SIGNATURE + header(width, height, bits, colour)


def unusual() -> dict[str, bytes]:
    rows, start = two()
    end, text = written(b"IEND", b""), written(b"tEXt", b"a\0b")
    plain = bytes(61 * 10)
    odd = bytearray(plain)
    odd[61 * 4] = 5
    apng = io.BytesIO()
    Image.fromarray(noise(40, 30)).save(
        apng, "PNG", save_all=True, append_images=[Image.fromarray(noise(40, 30, 1))], duration=100
    )
    return {
        "animated": apng.getvalue(),
        "text behind the pixels": start + written(b"IDAT", rows) + text + end,
        "another chunk between": start
        + written(b"IDAT", rows[:9])
        + written(b"tEXt", b"a\0b")
        + written(b"IDAT", rows[9:])
        + end,
        "no end": start + written(b"IDAT", rows),
        "cut off": (start + written(b"IDAT", rows))[:-9],
        "two headers": start + header(20, 10, 8, 2) + written(b"IDAT", rows) + end,
        "wrong sum": start + written(b"IDAT", rows[:-1] + bytes([rows[-1] ^ 1])) + end,
        "no sum": start + written(b"IDAT", rows[:-4]) + end,
        "a row too few": start + written(b"IDAT", zlib.compress(plain[:-61])) + end,
        "a row too many": start + written(b"IDAT", zlib.compress(plain + bytes(61))) + end,
        "filter 5": start + written(b"IDAT", zlib.compress(bytes(odd))) + end,
        "no deflate": start + written(b"IDAT", bytes(100)) + end,
        "nothing": start + written(b"IDAT", b"") + end,
        "interlaced": SIGNATURE + header(1, 1, 8, 0, 1) + written(b"IDAT", zlib.compress(bytes(2))) + end,
    }


@pytest.mark.parametrize("name", unusual())
def test_the_unusual_is_for_pillow(name: str) -> None:
    """Red if a file that is not plain is ours, or is refused with another sentence, or not at all."""
    data = unusual()[name]
    assert not is_ours(data)
    assert result(lambda data: decode_image(load_image(data, ANY)), data) == result(by_pillow, data)


def test_damaged_files_have_the_same_end() -> None:
    """Red if damage that Pillow refuses gives pixels here, or other pixels, or another sentence."""
    chance = random.Random(7)
    good = [
        png(70, 12, bits, colour, any_rows(70, 12, bits, colour, number, (0, 1, 2, 3, 4)), pieces=2)
        for number, (bits, colour) in enumerate(KINDS)
    ]
    ends = set()
    for number in range(600):
        data = damaged(good[number % len(good)], chance)
        wanted = result(by_pillow, data)
        assert result(lambda data: decode_image(load_image(data, ANY)), data) == wanted
        ends.add(type(wanted))
    assert ends == {str, tuple}


def test_a_bomb_is_not_inflated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Red if more is inflated than the rows take: here a thousand times as much as the file says it has."""
    start = two()[1]
    data = start + written(b"IDAT", zlib.compress(bytes(50_000_000))) + written(b"IEND", b"")
    sizes = []
    inflate = png_pixels._inflated

    def counted(payload: bytes | memoryview, size: int) -> bytes | None:
        tracemalloc.start()
        found = inflate(payload, size)
        sizes.append((size, tracemalloc.get_traced_memory()[1]))
        tracemalloc.stop()
        return found

    monkeypatch.setattr(png_pixels, "_inflated", counted)
    assert np.array_equal(decode_image(load_image(data, ANY)), np.zeros((10, 20, 3), np.uint8))
    ((size, most),) = sizes
    assert size == 610 and most < 1_000_000


def test_large_ones_and_cancelled_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Red if a file whose decode takes long, and could not be cancelled, is ours; or if one that nobody wants is decoded."""
    data = encoded(picture("RGB", 40, 70), "PNG")
    with pytest.raises(DecodeCancelled):
        decode_image(load_image(data, ANY), lambda: True)
    monkeypatch.setattr(png_pixels, "MOST_BYTES", 70 * 40 * 3 - 1)
    assert not is_ours(data) and np.array_equal(decode_image(load_image(data, ANY)), by_pillow(data))


def test_without_zlib_ng_pillow_decodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Red if a machine without the package refuses PNG files."""
    data = encoded(picture("RGB", 40, 70), "PNG")
    monkeypatch.setattr(png_pixels, "zlib_ng", None)
    png_pixels.get_ready()
    assert not is_ours(data) and np.array_equal(decode_image(load_image(data, ANY)), by_pillow(data))


@pytest.mark.filterwarnings("ignore:Palette images")
@pytest.mark.parametrize("path", asset_files("images/formats/*.png"))
def test_real_files(path: Path) -> None:
    data = path.read_bytes()
    assert np.array_equal(decode_image(load_image(data, ANY)), by_pillow(data))
