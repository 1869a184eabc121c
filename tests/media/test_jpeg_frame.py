"""What the markers of a JPEG say, against files that Pillow writes and reads. Red when a file on which decoders differ, or that
Pillow refuses, is called an everyday one."""

import io

import numpy as np
import pytest
from PIL import Image

from assets import asset_files
from media.pictures import encoded, picture
from sightline.media.jpeg import MAX_SCANS
from sightline.media.jpeg_frame import ends_well, is_everyday, read_frame

SUBSAMPLINGS = {"4:4:4": (1, 1), "4:2:2": (2, 1), "4:2:0": (2, 2)}


def jpeg(mode: str = "RGB", height: int = 70, width: int = 90, **options: object) -> bytes:
    return encoded(picture(mode, height, width), "JPEG", **options)


def everyday(data: bytes) -> bool:
    frame = read_frame(data)
    return frame is not None and is_everyday(data, frame)


@pytest.mark.parametrize("progressive", [False, True])
@pytest.mark.parametrize("subsampling", SUBSAMPLINGS)
def test_frames_of_colour(subsampling: str, progressive: bool) -> None:
    data = jpeg(subsampling=subsampling, progressive=progressive)
    frame = read_frame(data)
    assert frame is not None
    assert (frame.height, frame.width, frame.precision) == (70, 90, 8)
    assert frame.process == (0xC2 if progressive else 0xC0)
    assert frame.components == ((1, *SUBSAMPLINGS[subsampling]), (2, 1, 1), (3, 1, 1))
    assert frame.jfif and frame.adobe_transform is None
    assert data[frame.scan_start : frame.scan_start + 2] == b"\xff\xda"
    assert is_everyday(data, frame)


def test_grey_is_everyday() -> None:
    assert everyday(jpeg("L"))


# Red if colours that decoders may take for others pass: four components, RGB stored as it is, ids that name nothing.
def test_other_colours() -> None:
    assert not everyday(jpeg("CMYK"))
    assert not everyday(jpeg(keep_rgb=True))
    plain = jpeg(subsampling="4:4:4")
    start = plain.index(b"\xff\xc0")
    app0 = plain.index(b"\xff\xe0")
    without_jfif = plain[:app0] + plain[app0 + 18 :]
    assert everyday(without_jfif)
    assert not everyday(without_jfif.replace(plain[start + 10 : start + 13], bytes([82, *plain[start + 11 : start + 13]]), 1))


def test_coarse_chroma_is_not_everyday() -> None:
    data = bytearray(jpeg(subsampling="4:2:0"))
    place = data.index(b"\xff\xc0") + 11  # sampling of the first component
    for sampling, expected in ((0x22, True), (0x21, True), (0x12, True), (0x41, False), (0x42, False), (0x33, False)):
        data[place] = sampling
        assert everyday(bytes(data)) is expected, hex(sampling)


@pytest.mark.parametrize("marker", [0xC3, 0xC5, 0xC9, 0xCA, 0xCF])  # lossless, hierarchical, arithmetic codes
def test_other_processes(marker: int) -> None:
    assert not everyday(jpeg().replace(b"\xff\xc0", bytes([0xFF, marker]), 1))


def test_precision_and_height() -> None:
    data = bytearray(jpeg())
    start = data.index(b"\xff\xc0")
    for place, values in ((start + 4, b"\x0c"), (start + 5, b"\0\0")):  # 12 bits; a height that comes later
        changed = data.copy()
        changed[place : place + len(values)] = values
        assert not everyday(bytes(changed))


# Red if a file that is cut off passes: Pillow refuses those, another decoder may not.
@pytest.mark.parametrize("progressive", [False, True])
def test_no_cut_is_everyday(progressive: bool) -> None:
    data = jpeg(height=32, width=40, progressive=progressive, quality=60)
    assert everyday(data)
    for end in range(len(data)):
        assert not everyday(data[:end]), end


def test_what_follows_the_picture() -> None:
    data = jpeg()
    for more in (b"\0\0\r\n", b"\xff" * 5, b"text", data):
        assert everyday(data + more)


def test_markers_among_the_pixels() -> None:
    data = jpeg(height=200, width=200, quality=95)
    frame = read_frame(data)
    assert frame is not None
    middle = (frame.scan_start + len(data)) // 2
    for marker, expected in ((0xD3, True), (0x00, True), (0xAE, False), (0xC0, False), (0xD8, False)):
        changed = data[:middle] + bytes([0xFF, marker]) + data[middle + 2 :]
        assert everyday(changed) is expected, hex(marker)
        if not expected:
            with pytest.raises(OSError):
                Image.open(io.BytesIO(changed)).load()


def test_many_scans() -> None:
    data = jpeg(progressive=True)
    frame = read_frame(data)
    assert frame is not None
    last = data.rindex(b"\xff\xda")
    scan = data[last:-2]
    own = data.count(b"\xff\xda")
    most = data[:-2] + scan * (MAX_SCANS - own) + b"\xff\xd9"
    assert ends_well(most, frame.scan_start)
    assert not ends_well(data[:-2] + scan * (MAX_SCANS - own + 1) + b"\xff\xd9", frame.scan_start)


# Red if damage makes the reader raise.
def test_damaged_files_are_read_without_a_fault() -> None:
    random = np.random.default_rng(0)
    data = np.frombuffer(jpeg(), np.uint8)
    for _ in range(500):
        changed = data[: random.integers(2, len(data) + 1)].copy()
        places = random.integers(2, len(changed) + 1, 4) - 1
        changed[places] = random.integers(0, 256, 4)
        everyday(changed.tobytes())
    for data_of in (b"", b"\xff", b"\xff\xd8\xff", b"\xff\xd8\xff\xe0", b"\xff\xd8\xff\xda\0\2", b"\xff\xd8\xff\xc0\0\2"):
        assert not everyday(data_of)


# Red if a real file that Pillow refuses is called an everyday one.
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("path", asset_files("images/**/*.jpg", "images/**/*.jpeg", "images/**/*.mpo"))
def test_real_files(path) -> None:
    data = path.read_bytes()
    if everyday(data):
        with Image.open(io.BytesIO(data)) as image:
            image.load()
            frame = read_frame(data)
            assert frame is not None and image.size == (frame.width, frame.height)
            assert image.mode == ("L" if len(frame.components) == 1 else "RGB")
