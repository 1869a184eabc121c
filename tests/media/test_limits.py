"""Every limit by its sentence, at its edge."""

import threading
from dataclasses import replace

import pytest

from media.pictures import encoded, picture, video
from prompt.builders import processor_spec, prompt_builder
from sightline.config import Config, MediaConfig, read_media_counts
from sightline.errors import ConfigError, MediaError
from sightline.llm import _with_settings
from sightline.media.cost import image_megapixels
from sightline.media.item import item_of
from sightline.media.limits import ByteAllowance, RequestBudget, check_image_work, check_size, check_video_work
from sightline.media.source import load_image, load_video
from sightline.types import ImageHeader, MediaItem, MediaRef, VideoHeader, View


def says(sentence: str, function, *arguments: object) -> None:
    with pytest.raises(MediaError) as caught:
        function(*arguments)
    assert str(caught.value) == sentence


# ---- One item


def test_pixels_sides_and_aspect() -> None:
    limits = MediaConfig(max_image_pixels=1000, min_image_side=4, max_aspect_ratio=10)
    for width, height in ((25, 40), (4, 40), (40, 4), (4, 4)):
        check_size("Image X", width, height, limits)
    says("Image X has 7x143 pixels, more than the 1,000 allowed (--max-image-pixels).", check_size, "Image X", 7, 143, limits)
    says("Image X has 3x9 pixels, but each side must have at least 4 (--min-image-side).", check_size, "Image X", 3, 9, limits)
    says(
        "Image X has 41x4 pixels, but one side may be 10 times the other at most (--max-aspect-ratio).",
        check_size, "Image X", 41, 4, limits,
    )  # fmt: skip


# Red if a limit is checked for one way of handing over an image and not for another, or for images and not for videos.
def test_sides_and_aspect_hold_for_every_source() -> None:
    limits = MediaConfig(min_image_side=50, max_aspect_ratio=1.2)
    flat = picture(height=60, width=90)
    says("Image <bytes> has 22x14 pixels, but each side must have at least 50 (--min-image-side).",
         load_image, encoded(picture(), "PNG"), limits)  # fmt: skip
    says("Image <Image> has 90x60 pixels, but one side may be 1.2 times the other at most (--max-aspect-ratio).",
         load_image, flat, limits)  # fmt: skip
    says("Video <bytes> has 64x48 pixels, but each side must have at least 50 (--min-image-side).",
         load_video, video(2), limits)  # fmt: skip
    assert load_image(flat, MediaConfig()).header.width == 90


def test_videos() -> None:
    clip = video(20, fps=10)  # 2 s of 64x48
    assert load_video(clip, MediaConfig(max_video_seconds=2.0, max_video_frames=20)).header.frame_count == 20
    says("Video <bytes> plays for 2.0 s, longer than the 1.9 s allowed (--max-video-seconds).",
         load_video, clip, MediaConfig(max_video_seconds=1.9))  # fmt: skip
    says("Video <bytes> has more than the 19 frames allowed (--max-video-frames).",
         load_video, clip, MediaConfig(max_video_frames=19))  # fmt: skip


# ---- What decoding costs


def image_ref(file_format: str, width: int, height: int, channels: int = 3, scans: int = 1) -> MediaRef:
    return MediaRef("image", b"?", bytes(32), ImageHeader(file_format, width, height, 1, channels, scans), "X")


def clip_item(width: int, height: int, frames: int, last: int, data: bytes = b"?") -> MediaItem:
    header = VideoHeader("mp4", width, height, frames, 30.0, frames / 30)
    return MediaItem(
        MediaRef("video", data, bytes(32), header, "X"), b"", (View.whole((32, 32)),), ((1, 2, 2),), (0, last), (0.0, 0.0), 1
    )


# Red if a format, a scan or a channel is not counted, or a default refuses what it should let in.
@pytest.mark.parametrize(
    ("header", "megapixels"),
    [
        (ImageHeader("JPEG", 15_000, 10_000, 1), 150),
        (ImageHeader("JPEG", 8192, 6144, 1, scans=10), 503.3),  # a progressive photo of a camera of 50 megapixels
        (ImageHeader("PNG", 15_000, 10_000, 1), 450),
        (ImageHeader("WEBP", 8000, 8000, 1), 384),
        (ImageHeader("AVIF", 8000, 8000, 1, channels=4), 512),
        (ImageHeader("JPEG2000", 4000, 5000, 1), 480),
        (ImageHeader("RGB", 15_000, 10_000, 1), 0),
    ],
)
def test_work_of_images_that_are_let_in(header: ImageHeader, megapixels: float) -> None:
    assert image_megapixels(header) == pytest.approx(megapixels, rel=1e-3)
    check_image_work("Image X", header, MediaConfig())


def test_work_of_images_that_are_refused() -> None:
    says("Image X has 12000x12000 pixels in 195 scans, 28,080 megapixels of work to decode, "
         "more than the 550 allowed (--max-image-decode-mpx).",
         check_image_work, "Image X", ImageHeader("JPEG", 12_000, 12_000, 1, 1, 195), MediaConfig())  # fmt: skip
    says("Image X has 12200x12200 pixels in 4 channels in PNG, 595 megapixels of work to decode, "
         "more than the 550 allowed (--max-image-decode-mpx).",
         check_image_work, "Image X", ImageHeader("PNG", 12_200, 12_200, 1, 4), MediaConfig())  # fmt: skip
    limits = MediaConfig(max_image_decode_mpx=0)
    with pytest.raises(MediaError, match=r"10 scans, 0 megapixels of work .* allowed \(--max-image-decode-mpx\)\.$"):
        load_image(encoded(picture(), "JPEG", progressive=True), limits)
    assert load_image(picture(), limits).header.width == 22  # it is decoded already


def test_work_of_videos() -> None:
    hour = 3600 * 30
    check_video_work("Video X", clip_item(1920, 1080, hour, hour - 1), MediaConfig(max_video_frames=hour))
    assert MediaConfig().max_video_frames > hour
    check_video_work("Video X", clip_item(3840, 2160, hour, 20_000), MediaConfig())  # the model sees its beginning only
    says("Video X has 895.8 billion pixels in the 108,000 frames to decode, "
         "more than the 250 allowed (--max-video-gigapixels).",
         check_video_work, "Video X", clip_item(3840, 2160, hour, hour - 1), MediaConfig())  # fmt: skip


# Red if items of a request are not added up, or ones that are never decoded are.
def test_work_of_a_request() -> None:
    budget = RequestBudget(MediaConfig(max_request_image_decode_mpx=300, max_request_video_gigapixels=2))
    processor = processor_spec("qwen3-vl")
    photo = item_of(image_ref("JPEG", 10_000, 10_000), processor)
    for _ in range(3):
        budget.take_item(photo)
        budget.take_item(replace(photo, ref=replace(photo.ref, data=b"")))
    says("The images of the request take 301 megapixels of work to decode, more than the 300 allowed together "
         "(--max-request-image-decode-mpx).",
         budget.take_item, item_of(image_ref("JPEG", 1000, 1000), processor))  # fmt: skip
    for _ in range(2):
        budget.take_item(clip_item(1000, 1000, 1000, 999))
        budget.take_item(clip_item(1000, 1000, 9000, 8999, data=b""))
    says("The videos of the request have 2.1 billion pixels to decode, more than the 2 allowed together "
         "(--max-request-video-gigapixels).",
         budget.take_item, clip_item(1000, 1000, 1000, 99))  # fmt: skip


# Red if what arrives in pieces is not added up, or the two limits are mixed up.
def test_bytes_in_pieces() -> None:
    limits = MediaConfig(max_image_mb=2, max_video_mb=3, max_request_media_mb=4)
    budget = RequestBudget(limits)
    image = ByteAllowance("image", "X", limits, budget)
    image.take(1_500_000)
    assert (image.left, budget.bytes_left()) == (500_000, 2_500_000)
    says("Image X has more than the 2 MB allowed (--max-image-mb).", image.take, 500_001)
    clip = ByteAllowance("video", "Y", limits, budget)
    assert clip.left == 2_500_000
    together = "The images and videos of the request have more than the 4 MB allowed together (--max-request-media-mb)."
    says(together, clip.check, 2_500_001)
    says("Video Y has 3.1 MB, more than the 3 MB allowed (--max-video-mb).", clip.check, 3_100_000)
    says(together, clip.take, 2_500_001)


# ---- A request


def test_items_by_kind() -> None:
    limits = MediaConfig(limit_mm_per_prompt='{"image": 2, "video": 0}')
    budget = RequestBudget(limits)
    budget.take_items(["image", "image"])
    says("The request has 3 images, more than the 2 allowed (--limit-mm-per-prompt).", budget.take_items, ["image"])
    says(
        "The request has 1 video, more than the 0 allowed (--limit-mm-per-prompt).", RequestBudget(limits).take_items, ["video"]
    )


def test_frames() -> None:
    budget = RequestBudget(MediaConfig(max_request_frames=1000))
    budget.take_frames(600)
    budget.take_frames(400)
    says("The videos of the request have 1,001 frames for the model to see, "
         "more than the 1,000 allowed (--max-request-frames).",
         budget.take_frames, 1)  # fmt: skip


# Red if threads lose each other's bytes.
def test_budgets_are_safe_among_threads() -> None:
    budget = RequestBudget(MediaConfig(max_request_media_mb=1))

    def take() -> None:
        for _ in range(10_000):
            budget.take_bytes(10)

    threads = [threading.Thread(target=take) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert budget.bytes_left() == 200_000


# Red if building a request leaves out a limit on the whole, or fetches media before they are counted.
def test_requests_are_held_to_their_limits(tmp_path) -> None:
    image, clip = encoded(picture(height=400, width=600), "BMP"), video(20)  # 0.72 MB, and 4 frames or more to see

    def build(media: list, **limits: object) -> None:
        prompt_builder(tmp_path, "qwen3-vl", limits=MediaConfig(**limits)).text("nothing", media)

    says("The request has 2 images, more than the 1 allowed (--limit-mm-per-prompt).",
         lambda: build([("image", "/no/such/file")] * 2, limit_mm_per_prompt={"image": 1}))  # fmt: skip
    says("The images and videos of the request have more than the 1 MB allowed together (--max-request-media-mb).",
         lambda: build([("image", image)] * 2, max_request_media_mb=1))  # fmt: skip
    with pytest.raises(MediaError, match=r"frames for the model to see, more than the 3 allowed \(--max-request-frames\)\.$"):
        build([("video", clip)], max_request_frames=3)
    with pytest.raises(
        MediaError, match=r"work to decode, more than the 1 allowed together \(--max-request-image-decode-mpx\)\.$"
    ):
        build([("image", image)] * 2, max_request_image_decode_mpx=1)
    with pytest.raises(MediaError, match=r"frames to decode, more than the 0 allowed \(--max-video-gigapixels\)\.$"):
        build([("video", clip)], max_video_gigapixels=0)
    with pytest.raises(MediaError, match=r"to decode, more than the 0 allowed together \(--max-request-video-gigapixels\)\.$"):
        build([("video", clip)], max_request_video_gigapixels=0)


# ---- The setting


def test_counts_are_read() -> None:
    assert read_media_counts('{"image": 3}') == {"image": 3, "video": 8}
    assert MediaConfig(limit_mm_per_prompt={"video": 1}).limit_mm_per_prompt == '{"video": 1}'
    assert _with_settings(Config(), {"limit_mm_per_prompt": {"image": 1}}).media.limit_mm_per_prompt == '{"image": 1}'


@pytest.mark.parametrize("text", ["", "image=3", "[1]", '{"image": "3"}', '{"image": -1}', '{"image": true}', "null"])
def test_counts_that_cannot_be_read(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        MediaConfig(limit_mm_per_prompt=text)
    assert str(caught.value) == f'limit_mm_per_prompt is {text!r}, but must be JSON like {{"image": 16, "video": 1}}.'


def test_counts_of_unknown_kinds() -> None:
    with pytest.raises(ConfigError, match=r"limit_mm_per_prompt names 'audio', but only image and video can be limited\."):
        MediaConfig(limit_mm_per_prompt='{"audio": 1}')


# Red if a host that no URL can match is taken without a word, or a list from a file cannot be used.
def test_allowed_hosts_are_hosts() -> None:
    hosts = ["example.org", "bücher.example", "10.0.0.1", "::1", "[2001:db8::1]", "localhost"]
    assert MediaConfig(allowed_media_domains=hosts).allowed_media_domains == tuple(hosts)
    assert MediaConfig(allowed_media_ports=[9000]).allowed_media_ports == (9000,)
    for host in ("https://example.org", "example.org:8080", "*.example.org", "", "example.org/", ".example.org", "a@b"):
        with pytest.raises(ConfigError, match=r"^allowed_media_domains has .*, but must be host names or addresses, such as"):
            MediaConfig(allowed_media_domains=(host,))
