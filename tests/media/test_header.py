"""Headers against what Pillow and PyAV give when they decode."""

import io
import struct
import sys
import time
import zlib
from fractions import Fraction

import av
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps, PngImagePlugin, features

from assets import asset_files
from media.pictures import HEIGHT, WIDTH, encoded, exif, noise, picture, video, xmp
from sightline.config import MediaConfig
from sightline.errors import MediaError
from sightline.media.decode import decode_image
from sightline.media.ffmpeg import open_video
from sightline.media.header import read_image_header, read_video_header
from sightline.media.png import MAX_CHUNKS
from sightline.media.source import load_image

ORIENTATIONS = range(1, 9)
AVIF = pytest.param("AVIF", marks=pytest.mark.skipif(not features.check("avif"), reason="this Pillow has no AVIF"))


def displayed(data: bytes) -> Image.Image:
    """What transformers' load_image makes of the bytes."""
    return ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB")


def check_size(data: bytes, orientation: int) -> None:
    header = read_image_header(data, "test")
    assert (header.width, header.height) == displayed(data).size
    assert header.orientation == orientation


# Red if what decoding costs is read wrongly from a header: channels, their bits, scans.
@pytest.mark.parametrize(
    ("mode", "file_format", "options", "channels", "scans"),
    [
        ("RGB", "JPEG", {}, 3, 1),
        ("RGB", "JPEG", {"progressive": True}, 3, 10),
        ("L", "JPEG", {"progressive": True}, 1, 6),
        ("CMYK", "JPEG", {}, 4, 1),
        ("1", "PNG", {}, 1, 1),
        ("P", "PNG", {}, 1, 1),
        ("LA", "PNG", {}, 2, 1),
        ("RGBA", "PNG", {}, 4, 1),
        ("I;16", "PNG", {}, 2, 1),
        ("I;16", "TIFF", {}, 2, 1),
        ("RGB", "TIFF", {}, 3, 1),
        ("RGBA", "WEBP", {}, 4, 1),
    ],
)
def test_channels_and_scans(mode: str, file_format: str, options: dict[str, object], channels: int, scans: int) -> None:
    header = read_image_header(encoded(picture(mode), file_format, **options), "test")
    assert (header.channels, header.scans) == (channels, scans)


# Red if 16 bits a channel, which Pillow gives as 8, are counted as 8.
def test_channels_of_16_bits() -> None:
    ihdr = struct.pack(">IIBBBBB", WIDTH, HEIGHT, 16, 6, 0, 0, 0)
    pixels = zlib.compress(bytes(HEIGHT * (1 + 8 * WIDTH)))
    chunks = [(b"IHDR", ihdr), (b"IDAT", pixels), (b"IEND", b"")]
    data = b"\x89PNG\r\n\x1a\n" + b"".join(png_chunk(*chunk) for chunk in chunks)
    assert read_image_header(data, "test").channels == 8
    assert decode_image(load_image(data, MediaConfig())).shape == (HEIGHT, WIDTH, 3)


def png_chunk(name: bytes, payload: bytes) -> bytes:
    return struct.pack(">I4s", len(payload), name) + payload + struct.pack(">I", zlib.crc32(name + payload))


def png_with_late(*chunks: bytes, image: bytes | None = None) -> bytes:
    """A PNG with chunks between the last pixels and the end."""
    data = image or encoded(picture(), "PNG")
    assert data.endswith(png_chunk(b"IEND", b""))
    return b"".join((data[:-12], *chunks, data[-12:]))


# ---- Images


# Red if width and height are not swapped for 5..8, or are swapped twice (Pillow's TIFF reader swaps on its own).
@pytest.mark.parametrize("orientation", ORIENTATIONS)
@pytest.mark.parametrize("file_format", ["JPEG", "PNG", "WEBP", "TIFF", AVIF])
def test_exif_orientation(file_format: str, orientation: int) -> None:
    check_size(encoded(picture(), file_format, exif=exif(orientation)), orientation)


# Red if XMP is not looked at when EXIF says nothing; TIFF is the one format that then has not swapped its size on opening.
@pytest.mark.parametrize("orientation", ORIENTATIONS)
@pytest.mark.parametrize("file_format", ["JPEG", "WEBP", "TIFF", "PNG"])
def test_xmp_orientation(file_format: str, orientation: int) -> None:
    if file_format == "TIFF":
        data = encoded(picture(), "TIFF", tiffinfo={700: xmp(orientation)})
    elif file_format == "PNG":
        info = PngImagePlugin.PngInfo()
        info.add_itxt("XML:com.adobe.xmp", xmp(orientation).decode())
        data = encoded(picture(), "PNG", pnginfo=info)
    else:
        data = encoded(picture(), file_format, xmp=xmp(orientation))
    check_size(data, orientation)


# Red if only the chunks in front of a PNG's pixels are read, if late chunks are not in Pillow's order of precedence (the last
# eXIf wins, EXIF wins over XMP), or if a late chunk's checksum is verified (Pillow does not).
@pytest.mark.parametrize(
    ("late", "orientation"),
    [
        ([png_chunk(b"eXIf", exif(6)[6:])], 6),
        ([png_chunk(b"eXIf", exif(6)[6:]), png_chunk(b"eXIf", exif(3)[6:])], 3),
        ([png_chunk(b"iTXt", b"XML:com.adobe.xmp\0\0\0\0\0" + xmp(8))], 8),
        ([png_chunk(b"iTXt", b"XML:com.adobe.xmp\0\1\0\0\0" + zlib.compress(xmp(8)))], 8),
        ([png_chunk(b"iTXt", b"XML:com.adobe.xmp\0\0\0\0\0" + xmp(8)), png_chunk(b"eXIf", exif(6)[6:])], 6),
        ([png_chunk(b"zTXt", b"Raw profile type exif\0\0" + zlib.compress(b"\nexif\n40\n" + exif(5).hex().encode()))], 5),
        ([png_chunk(b"tEXt", b"Comment\0nothing"), png_chunk(b"prVt", b"private")], 1),
        ([png_chunk(b"eXIf", exif(6)[6:])[:-4] + b"\0\0\0\0"], 6),
        ([b"\0\0\0\4eX:f", png_chunk(b"eXIf", exif(6)[6:])], 1),  # a broken name ends the reading
    ],
)
def test_metadata_behind_the_pixels_of_a_png(late: list[bytes], orientation: int) -> None:
    check_size(png_with_late(*late), orientation)


# Red if the late eXIf replaces nothing: Pillow's early one is overridden by the late one.
def test_late_metadata_overrides_early_metadata() -> None:
    early = encoded(picture(), "PNG", exif=exif(6))
    check_size(png_with_late(png_chunk(b"eXIf", exif(1)[6:]), image=early), 1)


# Red if an eXIf of a later frame is taken for the first frame's.
def test_metadata_between_frames_of_an_animation_is_not_the_first_frames() -> None:
    frames = [picture(seed=seed) for seed in range(3)]
    data = encoded(frames[0], "PNG", save_all=True, append_images=frames[1:])
    second = data.rindex(b"fcTL") + 4 + 26 + 4
    late = data[:second] + png_chunk(b"eXIf", exif(6)[6:]) + data[second:]
    check_size(late, 1)
    check_size(data, 1)


# Red if the header of a PNG decodes its pixels, as PngImageFile.getexif does.
def test_png_header_decodes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, late = encoded(picture(), "PNG"), png_with_late(png_chunk(b"eXIf", exif(6)[6:]))

    def load(self: Image.Image) -> None:
        raise AssertionError("pixels were decoded")

    monkeypatch.setattr(PngImagePlugin.PngImageFile, "load", load)
    assert read_image_header(plain, "test").width == WIDTH
    assert read_image_header(late, "test").width == HEIGHT


# Red if the first frame's size is not that of the whole canvas, or a later frame's is taken.
@pytest.mark.parametrize("file_format", ["GIF", "PNG", "WEBP"])
def test_animation_is_its_first_frame(file_format: str) -> None:
    frames = [picture(seed=seed) for seed in range(3)]
    data = encoded(frames[0], file_format, save_all=True, append_images=frames[1:])
    check_size(data, 1)


# Red if a format outside the list is opened.
@pytest.mark.parametrize("file_format", ["ICO", "TGA", "PCX", "SGI", "DDS", "EPS"])
def test_formats_that_are_not_pictures_of_the_web_are_refused(file_format: str) -> None:
    with pytest.raises(MediaError, match=r"Image test\.bin cannot be read: it is none of JPEG,.* PNG,.*\.$"):
        read_image_header(encoded(picture(), file_format), "test.bin")


# Red if the walk over chunks has no limit: Pillow takes about a minute to open this file.
def test_png_of_countless_chunks_is_refused_at_once() -> None:
    data = png_with_late(png_chunk(b"prVt", b"") * (MAX_CHUNKS + 1))
    began = time.monotonic()
    with pytest.raises(MediaError, match="more than 200,000 chunks"):
        read_image_header(data, "test")
    assert time.monotonic() - began < 5


# Red if a header that says 0 pixels or a bomb gets through, or if Pillow's limit for the whole process is touched.
def test_absurd_sizes() -> None:
    before = Image.MAX_IMAGE_PIXELS
    for width, height in ((0, 5), (5, 0), (100_000, 100_000)):
        ihdr = png_chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
        data = b"\x89PNG\r\n\x1a\n" + ihdr + png_chunk(b"IDAT", b"") + png_chunk(b"IEND", b"")
        with pytest.raises(MediaError, match="Image test cannot be read: "):
            read_image_header(data, "test")
    assert before == Image.MAX_IMAGE_PIXELS


# Red if header and decoded size differ for any real file, or a file that Pillow reads is refused.
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("path", asset_files("images/photos/*", "images/documents/*", "images/shapes/*", "images/formats/*"))
def test_header_of_real_files(path) -> None:
    data = path.read_bytes()
    try:
        expected = displayed(data)
    except OSError:
        expected = None
    ref = load_image(data, MediaConfig())
    if expected is None:  # a truncated file: its header is fine
        with pytest.raises(MediaError):
            decode_image(ref)
    else:
        assert (ref.header.width, ref.header.height) == expected.size
        assert np.array_equal(decode_image(ref), np.asarray(expected))


# Red if anything but a MediaError comes out, if we accept what Pillow refuses or the other way round, or if it takes long.
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("path", asset_files("images/hostile/*"))
def test_hostile_files(path) -> None:
    data = path.read_bytes()
    try:
        expected = np.asarray(displayed(data))
    except Exception:
        expected = None
    began = time.monotonic()
    try:
        found = decode_image(load_image(data, MediaConfig()))
    except MediaError as error:
        found = None
        assert str(error).endswith(".") and "\n" not in str(error)
    assert time.monotonic() - began < 10
    assert (found is None) == (expected is None)
    assert found is None or np.array_equal(found, expected)


_SEEDS = [
    encoded(picture(), "JPEG", exif=exif(6)),
    encoded(picture("P"), "PNG"),
    png_with_late(png_chunk(b"eXIf", exif(6)[6:])),
    encoded(picture(), "WEBP"),
    encoded(picture(), "GIF"),
    encoded(picture(), "TIFF", compression="tiff_lzw"),
    encoded(picture(), "BMP"),
    encoded(picture(), "PPM"),
    encoded(picture(), "JPEG2000"),
]


# Red if damage makes anything but a MediaError, or makes header and pixels disagree.
@pytest.mark.filterwarnings("ignore")
@settings(max_examples=300, deadline=None)
@given(
    seed=st.sampled_from(_SEEDS),
    cut=st.floats(0.0, 1.0),
    flips=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), max_size=4),
)
def test_damaged_files(seed: bytes, cut: float, flips: list[tuple[float, int]]) -> None:
    data = bytearray(seed)
    for place, value in flips:
        data[int(place * len(data))] = value
    if cut < 0.5:
        del data[int(2 * cut * len(data)) :]
    try:
        ref = load_image(bytes(data), MediaConfig(max_image_pixels=1_000_000))
        pixels = decode_image(ref)
    except MediaError:
        return
    expected = displayed(bytes(data))
    assert expected.size == (ref.header.width, ref.header.height)
    assert np.array_equal(pixels, np.asarray(expected))


# ---- Videos


def decodable(data: bytes) -> int:
    with open_video(data, "<bytes>") as container:
        return sum(1 for _ in container.decode(video=0))


# Red if the flush packet is counted or reordered frames are lost.
@pytest.mark.parametrize("frames", [1, 2, 5, 40])
@pytest.mark.parametrize(
    ("codec", "container", "options"),
    [
        ("mpeg4", "mp4", {}),
        ("mpeg4", "avi", {"bf": "2"}),
        ("libx264", "mp4", {"bf": "3"}),
        ("libx264", "mpegts", {}),
        ("libvpx", "webm", {"auto-alt-ref": "1", "lag-in-frames": "16", "b": "200k"}),
        ("libvpx-vp9", "webm", {"auto-alt-ref": "1", "lag-in-frames": "16", "b": "200k", "cpu-used": "8"}),
    ],
)
def test_video_header(codec: str, container: str, options: dict[str, str], frames: int) -> None:
    if codec not in av.codecs_available:
        pytest.skip(f"this PyAV has no {codec}")
    data = video(frames, Fraction(30000, 1001), codec, container, "yuv420p", **options)
    header = read_video_header(data, "test")
    assert (header.width, header.height) == (64, 48)
    assert header.frame_count == frames == decodable(data)
    if frames >= 5:  # containers that keep no rate guess it from a few timestamps, badly if there are very few
        assert header.fps == pytest.approx(30000 / 1001, rel=0.02)
    assert header.duration == header.frame_count / header.fps


# Red if VP8's hidden reference frames, which two-pass encoders write as packets of their own, are counted as frames.
def test_hidden_frames_of_vp8_are_not_counted() -> None:
    if "libvpx" not in av.codecs_available:
        pytest.skip("this PyAV has no libvpx")
    buffer = io.BytesIO()
    with (
        av.open(io.BytesIO(video(5, 10, "libvpx", "webm", "yuv420p"))) as source,
        av.open(buffer, "w", format="webm") as output,
    ):
        stream = output.add_stream_from_template(source.streams.video[0])
        for packet in source.demux(video=0):
            if not packet.size:
                continue
            if not packet.is_keyframe:  # a copy of it that is not shown goes first
                content = bytearray(bytes(packet))
                content[0] &= ~0x10
                hidden = av.Packet(bytes(content))
                hidden.pts, hidden.dts, hidden.time_base, hidden.stream = packet.pts, packet.dts, packet.time_base, stream
                output.mux(hidden)
            packet.stream = stream
            output.mux(packet)
    data = buffer.getvalue()
    with av.open(io.BytesIO(data)) as container:
        assert sum(1 for packet in container.demux(video=0) if packet.size) > 5
    assert decodable(data) == read_video_header(data, "test").frame_count == 5


# Red if packets without a picture are counted (DivX writes one byte of filler for a delayed frame).
@pytest.mark.parametrize("path", asset_files("images/videos/*.avi"))
def test_header_of_real_videos(path) -> None:
    data = path.read_bytes()
    header = read_video_header(data, path.name)
    assert header.frame_count == decodable(data)
    assert header.format == "avi"
    assert header.fps in (30.0, 30000 / 1001)


# Red if counting does not stop at the limit.
def test_videos_with_too_many_frames_are_refused() -> None:
    assert read_video_header(video(5), "test", max_frames=5).frame_count == 5
    with pytest.raises(MediaError, match=r"Video test has more than the 4 frames allowed \(--max-video-frames\)\."):
        read_video_header(video(5), "test", max_frames=4)


def with_cover(moving: bool) -> bytes:
    """An MP4 with a cover picture and a video or, if not moving, a sound."""
    buffer = io.BytesIO()
    with av.open(buffer, "w", format="mp4") as output:
        cover = output.add_stream("mjpeg", rate=1)
        cover.width, cover.height, cover.pix_fmt = 32, 16, "yuvj420p"
        cover.disposition = av.stream.Disposition.attached_pic
        if moving:
            other = output.add_stream("mpeg4", rate=10)
            other.width, other.height, other.pix_fmt = 64, 48, "yuv420p"
            frames = [av.VideoFrame.from_ndarray(noise(48, 64, seed), format="rgb24") for seed in range(3)]
        else:
            other = output.add_stream("aac", rate=44100)
            frames = [av.AudioFrame.from_ndarray(np.zeros((1, 4096), np.int16), format="s16", layout="stereo")]
            frames[0].sample_rate = 44100
        for stream, pictures in ((cover, [av.VideoFrame.from_ndarray(noise(16, 32), format="rgb24")]), (other, frames)):
            for frame in pictures:
                output.mux(stream.encode(frame))
            output.mux(stream.encode())
    return buffer.getvalue()


# Red if a cover picture passes for a video, or hides the video beside it.
def test_attached_pictures_are_not_videos() -> None:
    header = read_video_header(with_cover(moving=True), "test")
    assert (header.width, header.height, header.frame_count) == (64, 48, 3)
    with pytest.raises(MediaError, match=r"Video test cannot be read: it has no video stream\."):
        read_video_header(with_cover(moving=False), "test")


# Red if a container that names other files is opened: it could read any file of the server.
def test_playlists_are_refused(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "secret.ts").write_bytes(video(3, codec="mpeg4", container="mpegts", pixel_format="yuv420p"))
    monkeypatch.chdir(tmp_path)
    concat = b"ffconcat version 1.0\nfile 'secret.ts'\n"
    with av.open(io.BytesIO(concat)) as container:  # without our list of demuxers the file is read
        assert sum(1 for _ in container.decode(video=0)) == 3
    playlist = b"#EXTM3U\n#EXT-X-TARGETDURATION:10\n#EXTINF:1.0,\nsecret.ts\n#EXT-X-ENDLIST\n"
    with pytest.raises(MediaError, match="Video test cannot be read: its container is none of mov, mp4, "):
        read_video_header(concat, "test")
    with pytest.raises(MediaError, match="Video test cannot be read: "):
        read_video_header(playlist, "test")


# Red if PyAV's own exceptions get out.
@pytest.mark.parametrize("data", [b"not a video", video(5)[:200], encoded(picture(), "PNG"), bytes(1000)])
def test_broken_videos(data: bytes) -> None:
    with pytest.raises(MediaError, match=r"^Video test cannot be read: [^\n]*\.$"):
        read_video_header(data, "test")


# Red if images need PyAV, or a missing PyAV is a traceback.
def test_without_pyav(monkeypatch: pytest.MonkeyPatch) -> None:
    clip = video(5)
    monkeypatch.setitem(sys.modules, "av", None)
    assert read_image_header(encoded(picture(), "PNG"), "test").width == WIDTH
    with pytest.raises(MediaError, match=r"Video test cannot be read: the Python package av is not installed\."):
        read_video_header(clip, "test")
