"""Decoded pixels against transformers' own loaders."""

import dataclasses
import io

import av
import msgspec
import numpy as np
import pytest
from PIL import Image

import torchvision_on_cpu
from assets import asset_files
from media.pictures import encoded, exif, noise, picture, video
from sightline.config import MediaConfig
from sightline.errors import MediaError
from sightline.media import decode
from sightline.media.decode import decode_image, decode_image_resized, decode_video, video_frames
from sightline.media.decoder_errors import DecodeCancelled
from sightline.media.source import load_image, load_video
from sightline.types import MediaRef

torchvision_on_cpu.declare_operators()
from transformers.image_utils import load_image as reference_image  # noqa: E402
from transformers.video_utils import read_video_pyav  # noqa: E402

ANY = MediaConfig()
MODES = [
    ("1", "PNG"),
    ("L", "PNG"),
    ("L", "JPEG"),
    ("LA", "PNG"),
    ("P", "PNG"),
    ("RGB", "GIF"),
    ("RGBA", "PNG"),
    ("RGBA", "WEBP"),
    ("CMYK", "JPEG"),
    ("CMYK", "TIFF"),
    ("YCbCr", "JPEG"),
    ("I;16", "PNG"),
    ("I;16", "TIFF"),
    ("F", "TIFF"),
    ("LAB", "TIFF"),
]


# Red if alpha is blended instead of dropped, or 16 bits, palettes or CMYK are converted in a way of our own.
@pytest.mark.filterwarnings("ignore:Palette images")
@pytest.mark.parametrize(("mode", "file_format"), MODES)
def test_modes(mode: str, file_format: str, tmp_path) -> None:
    path = tmp_path / "picture"
    path.write_bytes(encoded(picture(mode), file_format))
    assert np.array_equal(decode_image(load_image(path, ANY)), np.asarray(reference_image(str(path))))


# Red if one of the eight orientations is turned the wrong way: sizes alone cannot tell 6 from 8.
@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientations(orientation: int, tmp_path) -> None:
    path = tmp_path / "picture.png"
    path.write_bytes(encoded(picture(), "PNG", exif=exif(orientation)))
    assert np.array_equal(decode_image(load_image(path, ANY)), np.asarray(reference_image(str(path))))


# Red if a half picture is passed on with grey below, as Pillow does when told to.
@pytest.mark.parametrize("file_format", ["JPEG", "PNG", "WEBP", "GIF", "BMP", "JPEG2000"])
def test_truncated_images_are_refused(file_format: str) -> None:
    data = encoded(picture(height=200, width=300), file_format)
    with pytest.raises(MediaError, match=r"^Image <bytes> cannot be read: .*\.$"):
        decode_image(load_image(data[: len(data) * 3 // 4], ANY))


# Red if pixels of another size than the header promised get into patches made for the header's.
def test_pixels_must_have_the_size_of_the_header() -> None:
    ref = load_image(encoded(picture(), "PNG"), ANY)
    wrong = dataclasses.replace(ref, header=msgspec.structs.replace(ref.header, width=23))
    with pytest.raises(MediaError, match="it decodes to 22x14 pixels, but its header says 23x14"):
        decode_image(wrong)


class After:
    """Says that a decode is cancelled once it was asked so often."""

    def __init__(self, questions: int) -> None:
        self.left = questions

    def __call__(self) -> bool:
        self.left -= 1
        return self.left < 0


# Red if a decode that nobody wants goes on to the end of its file, or is told as the fault of the file.
@pytest.mark.parametrize("file_format", ["JPEG", "PNG", "BMP", "TIFF"])
def test_images_can_be_cancelled_between_blocks(file_format: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ref = load_image(
        encoded(picture(height=600, width=700), file_format, **({"quality": 98} if file_format == "JPEG" else {})), ANY
    )
    asked = After(10**9)
    decode_image(ref, asked)
    questions = 10**9 - asked.left
    assert questions > 5
    for count in (0, 1, questions - 1):
        with pytest.raises(DecodeCancelled):
            decode_image(ref, After(count))
    decode_image(ref, After(questions))


# Red if strips of a large picture are put together wrongly, or a picture that is resized at once is another.
def test_large_pictures_are_copied_in_strips(monkeypatch: pytest.MonkeyPatch) -> None:
    ref = load_image(encoded(picture(height=101, width=37), "PNG", exif=exif(6)), ANY)
    whole = decode_image(ref)
    monkeypatch.setattr(decode, "_STRIP_PIXELS", 1500)
    assert np.array_equal(decode_image(ref), whole)
    with pytest.raises(DecodeCancelled):
        decode_image(ref, After(10))
    resized = Image.fromarray(whole).resize((50, 20), Image.Resampling.BICUBIC)
    assert np.array_equal(decode_image_resized(ref, 20, 50), np.asarray(resized))


# ---- Videos


# Red if a video that nobody wants is decoded to its last frame.
def test_videos_can_be_cancelled_between_packets() -> None:
    frames = video_frames(clip(9), [0, 8], After(4))
    assert np.array_equal(next(frames), noise(48, 64, 0))
    with pytest.raises(DecodeCancelled):
        next(frames)


def clip(frames: int = 5, **options) -> MediaRef:
    return load_video(video(frames, **options), ANY)


# Red if an index is off by one, a repeated frame is skipped, or channels are swapped. The codec is lossless.
@pytest.mark.parametrize("indices", [[0], [4], [0, 1, 2, 3, 4], [1, 3], [0, 0, 2, 2, 2, 4], [4, 4]])
def test_frames(indices: list[int]) -> None:
    frames = decode_video(clip(), indices)
    assert np.array_equal(frames, np.stack([noise(48, 64, index) for index in indices]))


# Red if decoding goes on behind the last frame that is wanted: this file is damaged there.
def test_decoding_stops_after_the_last_frame() -> None:
    ref = clip(9, codec="mjpeg", pixel_format="yuvj420p")
    damaged = dataclasses.replace(ref, data=ref.data[: len(ref.data) // 2])
    assert np.array_equal(decode_video(damaged, [0, 2]), decode_video(ref, [0, 2]))
    with pytest.raises(MediaError):
        decode_video(damaged, [0, 8])


# Red if missing frames are made up or dropped silently.
def test_missing_frames_are_an_error_that_names_both_counts() -> None:
    ref = clip()
    promising = dataclasses.replace(ref, header=msgspec.structs.replace(ref.header, frame_count=10))
    with pytest.raises(MediaError, match="it promises 10 frames and only 5 can be decoded"):
        decode_video(promising, [0, 9])


# Red if a frame of another size is squeezed into the array.
def test_frames_must_have_the_size_of_the_header() -> None:
    ref = clip()
    wrong = dataclasses.replace(ref, header=msgspec.structs.replace(ref.header, height=50))
    with pytest.raises(MediaError, match="frame 0 has 64x48 pixels, but the header says 64x50"):
        decode_video(wrong, [0])


# Red if a caller that stops early leaves PyAV in a state that raises.
def test_frames_can_be_left_unread() -> None:
    frames = video_frames(clip(), [0, 1, 4])
    assert np.array_equal(next(frames), noise(48, 64, 0))
    frames.close()


# Red if decoded frames differ from those of transformers' PyAV reader, reordered ones included.
@pytest.mark.parametrize(
    ("codec", "container", "options"),
    [
        ("mpeg4", "mp4", {}),
        ("mpeg4", "avi", {"bf": "2"}),
        ("libx264", "mp4", {"bf": "3"}),
    ],
)
def test_frames_are_those_of_transformers(codec: str, container: str, options: dict[str, str]) -> None:
    if codec not in av.codecs_available:
        pytest.skip(f"this PyAV has no {codec}")
    ref = load_video(video(13, 25, codec, container, "yuv420p", **options), ANY)
    indices = [0, 3, 7, 12]
    expected, metadata = read_video_pyav(io.BytesIO(ref.data), lambda metadata: indices)
    assert (metadata.total_num_frames, metadata.fps) == (ref.header.frame_count, ref.header.fps)
    assert np.array_equal(decode_video(ref, indices), expected)


@pytest.mark.parametrize("path", asset_files("images/videos/*.avi"))
def test_real_videos(path) -> None:
    ref = load_video(path, ANY)
    last = ref.header.frame_count - 1
    indices = [0, 1, last // 2, last]
    expected, _ = read_video_pyav(str(path), lambda metadata: indices)
    assert np.array_equal(decode_video(ref, indices), expected)
    with pytest.raises(MediaError, match=f"promises {last + 1} frames and only {last + 1} can be decoded"):
        decode_video(ref, [last + 1])
