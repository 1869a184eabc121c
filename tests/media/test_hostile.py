"""Files that are made to cost: headers without end, pictures of countless scans, and good files damaged at random."""

import io
import json
import os
import struct
import subprocess
import sys
import time
import tracemalloc
import zlib
from dataclasses import replace
from pathlib import Path

import av
import pytest
from PIL import Image, features

import assets
from media.pictures import encoded, exif, picture, video
from sightline.config import MediaConfig
from sightline.engine.messages import EngineFailure
from sightline.errors import MediaError
from sightline.media import pillow
from sightline.media.decode import decode_image
from sightline.media.header import read_image_header
from sightline.media.jpeg import MAX_EXIF_SEGMENTS, MAX_SCANS, MAX_SEGMENTS, count_scans
from sightline.media.source import load_image, load_video
from sightline.server.errors import failed

MEGABYTE = 1_000_000
JPEG = encoded(picture(), "JPEG", exif=exif(6))
TOO_LONG = "Image X cannot be read: its header is too long or in too many pieces."


def segment(marker: int, payload: bytes) -> bytes:
    return bytes((0xFF, marker)) + struct.pack(">H", len(payload) + 2) + payload


def jpeg_with(*segments: bytes) -> bytes:
    return JPEG[:2] + b"".join(segments) + JPEG[2:]


def chunk(name: bytes, payload: bytes) -> bytes:
    return struct.pack(">I4s", len(payload), name) + payload + struct.pack(">I", zlib.crc32(name + payload))


def png_with(chunks: bytes) -> bytes:
    data = encoded(picture(), "PNG")
    return data[:33] + chunks + data[33:]


def test_messages_name_no_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Red when what a decoder says of an object of this process is repeated: where it lies is of use to whoever attacks the
    decoder next (CVE-2026-22778)."""

    def fail(*_: object, **__: object) -> None:
        raise OSError(f"cannot read {io.BytesIO()!r} by {fail!r}")

    for opened, load, data in ((pillow.Image, load_image, JPEG), (av, load_video, video())):
        with monkeypatch.context() as patched:
            patched.setattr(opened, "open", fail)
            with pytest.raises(MediaError, match=r"cannot read <_io.BytesIO object> by <function") as caught:
                load(data, MediaConfig())
            assert "0x" not in str(caught.value)
    said = failed(EngineFailure("internal", f"The engine failed with ValueError: {io.BytesIO()!r}")).message
    assert said == "The engine failed with ValueError: <_io.BytesIO object>"


def gif_with(blocks: bytes) -> bytes:
    data = encoded(picture(), "GIF")
    palette = 13 + 3 * 2 ** ((data[10] & 7) + 1)
    return data[:palette] + blocks + data[palette:]


COSTLY = {
    "JPEG comments": (
        lambda: jpeg_with(segment(0xFE, b"") * (16 * MEGABYTE // 4)),
        "its JPEG file has more than 4,096 segments.",
    ),
    "JPEG markers": (lambda: jpeg_with(b"\xff\xd0" * (16 * MEGABYTE // 2)), "its JPEG file has more than 4,096 segments."),
    "JPEG EXIF pieces": (lambda: jpeg_with(segment(0xE1, b"Exif\0\0a") * MEGABYTE), "its EXIF data has more than 16 segments."),
    "JPEG junk": (lambda: jpeg_with(segment(0xFE, b""), b"\0" * 16 * MEGABYTE), None),
    "JPEG metadata": (lambda: jpeg_with(segment(0xE2, bytes(65_000)) * 800), None),
    "PPM comment": (lambda: b"P6 #" + b"x" * 16 * MEGABYTE + b"\n4 4 255\n" + bytes(48), None),
    "PPM space": (lambda: b"P6" + b" " * 16 * MEGABYTE + b"4 4 255\n" + bytes(48), None),
    "GIF comment": (lambda: gif_with(b"\x21\xfe" + b"\x01a" * (8 * MEGABYTE) + b"\0"), None),
    "GIF extensions": (lambda: gif_with(b"\x21\x01\x01a\0" * (3 * MEGABYTE)), None),
    "PNG text": (lambda: png_with(chunk(b"tEXt", b"k\0v") * 150_000), None),
    "PNG profile": (lambda: png_with(chunk(b"prVt", bytes(50 * MEGABYTE))), None),
    "JPEG 2000 boxes": (lambda: b"\0\0\0\x0cjP  \r\n\x87\n" + b"\0\0\0\x08abcd" * (2 * MEGABYTE), None),
}


# Red if one of these is parsed to its end. Pillow alone takes from 5 s to many minutes for each of most of them.
@pytest.mark.parametrize("name", COSTLY)
def test_headers_without_end(name: str) -> None:
    make, sentence = COSTLY[name]
    data = make()
    tracemalloc.start()
    began = time.process_time()
    with pytest.raises(MediaError) as caught:
        read_image_header(data, "X")
    took, peak = time.process_time() - began, tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert str(caught.value) == (TOO_LONG if sentence is None else f"Image X cannot be read: {sentence}")
    assert took < 10  # of the processor's time; tracemalloc makes it some five times slower
    assert peak < 120 * MEGABYTE


def directory(*entries: tuple[int, int, int, int], tail: bytes = b"") -> bytes:
    """EXIF data: entries of (tag, type, count, value or offset), then what offsets lead to."""
    packed = b"".join(struct.pack("<HHII", *entry) for entry in entries)
    return b"II*\0" + struct.pack("<IH", 8, len(entries)) + packed + bytes(4) + tail


RATIONALS = directory((0x112, 3, 1, 6), (1000, 5, 400_000, 38), tail=b"\1" * 3_200_000)


# Red if EXIF data of megabytes are read: writing them anew, as Pillow does to turn a picture, takes seconds per megabyte.
@pytest.mark.parametrize(
    ("data", "megabytes"),
    [
        (png_with(chunk(b"eXIf", RATIONALS)), 3.2),
        (encoded(picture(), "WEBP", exif=b"Exif\0\0" + RATIONALS), 3.2),
        (png_with(chunk(b"eXIf", directory((0x112, 3, 5_000_000, 26), tail=bytes(10_000_001)))), 10.0),
    ],
)
def test_exif_of_megabytes(data: bytes, megabytes: float) -> None:
    with pytest.raises(MediaError) as caught:
        read_image_header(data, "X")
    assert str(caught.value) == f"Image X cannot be read: its EXIF data has {megabytes} MB, more than the 1.1 MB allowed."


OVERLAPPING = directory(*((1000 + number, 1, 500_000, 8) for number in range(8000)), tail=bytes(900_000))
OVERLAPPING_SMALL = directory(*((1000 + number, 1, 30_000, 8) for number in range(2500)), tail=bytes(31_000))
IN_TEXT = b"Raw profile type exif\0\nexif\n  99\n" + OVERLAPPING_SMALL.hex().encode()


# Red if entries that share a value are read each for itself: Pillow 12 takes 4 GB for the first of these.
@pytest.mark.parametrize(
    "data",
    [
        png_with(chunk(b"eXIf", OVERLAPPING)),
        encoded(picture(), "WEBP", exif=b"Exif\0\0" + OVERLAPPING),
        jpeg_with(segment(0xE1, b"Exif\0\0" + OVERLAPPING_SMALL)),
        png_with(chunk(b"tEXt", IN_TEXT)),
    ],
    ids=["PNG", "WEBP", "JPEG", "PNG text"],
)
def test_exif_values_that_overlap(data: bytes) -> None:
    tracemalloc.start()
    with pytest.raises(MediaError) as caught:
        read_image_header(data, "X")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert str(caught.value).endswith("the values of its EXIF data have more than 32 times the bytes that are there.")
    assert peak < 20 * MEGABYTE


# Red if Pillow gets to see the EXIF data of an AVIF, which it writes anew on opening, or if the turning of one is lost.
@pytest.mark.skipif(not features.check("avif"), reason="this Pillow has no AVIF")
def test_exif_of_an_avif_is_not_read() -> None:
    data = encoded(picture(), "AVIF", exif=b"Exif\0\0" + RATIONALS)
    began = time.process_time()
    header = read_image_header(data, "X")
    assert (header.width, header.height, header.orientation) == (14, 22, 6)
    assert decode_image(load_image(data, MediaConfig())).shape == (22, 14, 3)
    assert time.process_time() - began < 2


# Red if turning a picture costs what its EXIF data have: near the limit on them, some two seconds.
def test_turning_a_picture_does_not_write_exif() -> None:
    numbers = directory((0x112, 3, 1, 6), (1000, 5, 125_000, 38), tail=b"\1" * 1_000_000)
    ref = load_image(png_with(chunk(b"eXIf", numbers)), MediaConfig())
    began = time.process_time()
    assert decode_image(ref).shape == (22, 14, 3)
    assert time.process_time() - began < 1


# Red if an honest file meets the limits: many segments, EXIF in several pieces, a profile of megabytes.
def test_large_but_honest_headers() -> None:
    pieces = segment(0xE2, b"ICC_PROFILE\0" + bytes(60_000)) * 100
    for data in (
        jpeg_with(pieces),
        jpeg_with(segment(0xFE, b"comment") * (MAX_SEGMENTS - 20)),
        jpeg_with(segment(0xE1, b"Exif\0\0" + bytes(1000)) * (MAX_EXIF_SEGMENTS - 1)),
        jpeg_with(b"\xff" * 5000),
        png_with(chunk(b"tEXt", b"k\0v") * 2000),
        gif_with(b"\x21\xfe" + b"\xffx" + b"y" * 254 + b"\0"),
    ):
        header = read_image_header(data, "X")
        assert {header.width, header.height} == {22, 14}
        assert decode_image(load_image(data, MediaConfig())).size


# Red if the limit on a header also counts pixels: this file is read in many pieces when it is decoded.
def test_the_limit_is_on_headers_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    data = encoded(picture(height=900, width=1200), "PNG")
    monkeypatch.setattr(pillow, "MAX_HEADER_BYTES", 100_000)
    monkeypatch.setattr(pillow, "MAX_HEADER_READS", 60)
    assert len(data) > 1_000_000
    assert decode_image(load_image(data, MediaConfig())).shape == (900, 1200, 3)


# ---- Scans


def scans_of(data: bytes) -> int:
    return data.count(b"\xff\xda")


def many_scans(count: int) -> bytes:
    """A progressive JPEG whose last scan comes again and again, as a decoder may not refuse."""
    data = encoded(picture(height=64, width=64), "JPEG", progressive=True)
    last = data.rindex(b"\xff\xda")
    return data[:-2] + data[last:-2] * (count - scans_of(data)) + data[-2:]


# Red if a picture of thousands of scans is decoded, or if an honest progressive one is not.
def test_scans() -> None:
    honest = encoded(picture(height=64, width=64), "JPEG", progressive=True)
    assert 5 < scans_of(honest) < 20
    assert decode_image(load_image(honest, MediaConfig())).shape == (64, 64, 3)
    assert count_scans(many_scans(MAX_SCANS), "X") == load_image(many_scans(MAX_SCANS), MediaConfig()).header.scans == MAX_SCANS
    data = many_scans(5000)
    for look in (
        lambda: load_image(data, MediaConfig()),
        lambda: decode_image(replace(load_image(JPEG, MediaConfig()), data=data)),
    ):
        with pytest.raises(MediaError) as caught:
            look()
        assert str(caught.value) == f"Image <bytes> cannot be read: its JPEG file has more than {MAX_SCANS} scans."


# Red if millions of empty segments between scans are walked over one by one.
def test_segments_between_scans() -> None:
    several = many_scans(3)
    data = several[:-2] + segment(0xFE, b"") * 5000 + several[-2:]
    with pytest.raises(MediaError, match=r"^Image X cannot be read: its JPEG file has more than 4,096 segments\.$"):
        read_image_header(data, "X")


# Red if a file of which libjpeg reads the first scan alone is walked over to its end, or is said to have more.
def test_a_baseline_file_with_all_in_one_scan_has_one() -> None:
    assert count_scans(JPEG[:-2] + JPEG[JPEG.index(b"\xff\xda") :], "X") == 1


# Red if bytes that only look like scans are counted: in metadata, and behind the picture, where phones keep a video.
def test_what_looks_like_scans() -> None:
    looks = b"\xff\xda" * 1000
    for data in (jpeg_with(segment(0xEF, looks)), JPEG + looks):
        assert scans_of(data) > MAX_SCANS
        assert load_image(data, MediaConfig()).header.scans == 1
        assert decode_image(load_image(data, MediaConfig())).shape == (22, 14, 3)


# Red if a comment that holds an end marker ends the count.
def test_an_end_marker_in_a_comment_does_not_hide_scans() -> None:
    data = many_scans(300)
    last = data.rindex(b"\xff\xda")
    first = data.index(b"\xff\xda", data.index(b"\xff\xc2"))
    hidden = data[:first] + segment(0xFE, b"\xff\xd9") + data[first:last] + data[last:]
    with pytest.raises(MediaError, match="more than 200 scans"):
        count_scans(hidden, "X")


# ---- Bombs


# Red if a picture is decoded whose header says that it is too large, or Pillow's own limit is what stops it.
@pytest.mark.parametrize("file_format", ["PNG", "GIF", "WEBP", "TIFF", "BMP"])
def test_bombs_are_refused_by_their_header(file_format: str, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"compression": "tiff_lzw"} if file_format == "TIFF" else {}
    data = encoded(Image.new("1" if file_format in ("PNG", "TIFF", "BMP") else "L", (9000, 8000)), file_format, **options)
    assert len(data) < 10 * MEGABYTE

    def load(*_: object) -> None:
        raise AssertionError("pixels were decoded")

    monkeypatch.setattr(Image.Image, "load", load)
    with pytest.raises(MediaError) as caught:
        load_image(data, MediaConfig(max_image_pixels=50 * MEGABYTE))
    assert str(caught.value) == "Image <bytes> has 9000x8000 pixels, more than the 50,000,000 allowed (--max-image-pixels)."


@pytest.mark.parametrize("name", ["pil_decompression_bomb.gif", "pil_png_decompression_dos.png"])
def test_bombs_among_the_hostile_files(name: str) -> None:
    data = assets.asset(f"images/hostile/{name}").read_bytes()
    with pytest.raises(MediaError, match=r"^Image <bytes> cannot be read: .*\.$"):
        load_image(data, MediaConfig())


# ---- Damage


# Red if a file cut anywhere makes anything but a MediaError, when its header is read or when it is decoded.
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("file_format", ["JPEG", "PNG", "WEBP", "GIF", "TIFF", "BMP", "PPM", "JPEG2000"])
def test_files_cut_at_every_byte(file_format: str) -> None:
    data = encoded(picture(), file_format)
    refused = 0
    for length in range(0, len(data), 7):
        try:
            decode_image(load_image(data[:length], MediaConfig()))
        except MediaError as error:
            refused += 1
            assert str(error).endswith(".")
    assert refused > len(data) // 7 // 2


@pytest.mark.filterwarnings("ignore")
def test_videos_cut_anywhere() -> None:
    data = video(6, codec="mpeg4", container="mp4", pixel_format="yuv420p")
    for length in range(0, len(data) - 100, len(data) // 40):
        with pytest.raises(MediaError, match=r"^Video <bytes> cannot be read: .*\.$"):
            load_video(data[:length], MediaConfig())


# Red if a damaged file crashes the process, raises anything but a MediaError, takes seconds or much memory.
def test_damaged_files_in_a_process_of_their_own() -> None:
    folder = assets.folder()
    formats = "" if folder is None else str(folder / "images" / "formats")
    command = [sys.executable, "-m", "media.mutants", "1500", "100", formats]
    tests = Path(__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": f"{tests.parent}{os.pathsep}{tests}"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    assert found["read"] + found["refused"] == 1600
    assert found["read"] > 100 and found["refused"] > 500
    assert found["slowest_s"] < 20
    assert found["memory_mb"] < 1000
