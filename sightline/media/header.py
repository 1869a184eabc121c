"""What an image or a video says about itself before a pixel is decoded: format, displayed size, orientation, frames, rate."""

from PIL import ExifTags, Image, ImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.TiffImagePlugin import TiffImageFile

from sightline.errors import MediaError
from sightline.media.exif import check_exif
from sightline.media.ffmpeg import ffmpeg_errors, holds_picture, open_video, video_stream
from sightline.media.jpeg import START, check_segments, count_scans
from sightline.media.limits import check_frame_count
from sightline.media.pillow import open_image, pillow_errors
from sightline.media.png import SIGNATURE, bytes_per_pixel, check_chunk_count, metadata_first
from sightline.types import ImageHeader, VideoHeader

_SIDEWAYS = (5, 6, 7, 8)  # EXIF orientations that swap width and height


def read_image_header(data: bytes, source: str) -> ImageHeader:
    """The header of an encoded image; of an animation, that of its first frame.

    Width and height are those of ImageOps.exif_transpose(Image.open(...)), which decoding uses.
    """
    with pillow_errors(source):
        if data.startswith(SIGNATURE):
            check_chunk_count(data, source)
        elif data.startswith(START):
            check_segments(data, source)
        image = open_image(data)
        orientation = _orientation(image, data, source)
        width, height = image.size
        if orientation in _SIDEWAYS and not _size_is_turned(image):
            width, height = height, width
        name = image.format or "unknown"
        channels = bytes_per_pixel(data) if isinstance(image, PngImageFile) else _channels(image)
        scans = count_scans(data, source) if data.startswith(START) else 1
    if width <= 0 or height <= 0:
        raise MediaError(f"Image {source} cannot be read: its size is {width}x{height} pixels.")
    return ImageHeader(name, width, height, orientation, channels, scans)


def _channels(image: ImageFile.ImageFile) -> int:
    """Bytes of a stored pixel; Pillow names modes of one wide channel I;16, I and F."""
    return {"I": 4, "F": 4}.get(image.mode, 2 if image.mode.startswith("I;16") else len(image.getbands()))


def _orientation(image: ImageFile.ImageFile, data: bytes, source: str) -> int:
    """EXIF orientation, else that in XMP, as Pillow's exif_transpose finds it after decoding."""
    if isinstance(image, PngImageFile):
        complete = metadata_first(data, animated=image.is_animated)
        if complete is not data:
            image = open_image(complete)
        check_exif(_stored_exif(image), source)
        exif = Image.Image.getexif(image)  # not PngImageFile.getexif, which decodes the pixels first
    else:
        check_exif(_stored_exif(image), source)
        exif = image.getexif()
    value = exif.get(ExifTags.Base.Orientation, 1)
    return int(value) if value in range(1, 9) else 1


def _stored_exif(image: ImageFile.ImageFile) -> bytes:
    """Where Pillow's getexif takes EXIF data from: a field of the format, or in a PNG the text that ImageMagick writes."""
    if "exif" in image.info:
        return bytes(image.info["exif"])
    if "Raw profile type exif" in image.info:
        return bytes.fromhex("".join(image.info["Raw profile type exif"].split("\n")[3:]))
    return b""


def _size_is_turned(image: ImageFile.ImageFile) -> bool:
    """Pillow's TIFF reader swaps width and height itself on opening, if the file has the tag. It does not look at XMP then."""
    return isinstance(image, TiffImageFile) and image.tag_v2.get(ExifTags.Base.Orientation) in _SIDEWAYS


def read_video_header(data: bytes, source: str, max_frames: int | None = None) -> VideoHeader:
    """Counts the packets of the first video stream, decoding none. Stops with a MediaError at more than `max_frames`.

    Width and height are the stored ones. A rotation that a phone wrote beside the stream is not honoured, here or in decoding:
    PyAV shows it on decoded frames only, and transformers' reader ignores it too.
    """
    with ffmpeg_errors(source), open_video(data, source) as container:
        stream = video_stream(container, source)
        codec = stream.codec_context.name
        width, height = stream.codec_context.width, stream.codec_context.height
        rate = stream.average_rate or stream.guessed_rate or stream.base_rate
        frame_count = 0
        for packet in container.demux(stream):
            frame_count += holds_picture(codec, packet)
            if max_frames is not None:
                check_frame_count(f"Video {source}", frame_count, max_frames)
        name = container.format.name
    if width <= 0 or height <= 0:
        raise MediaError(f"Video {source} cannot be read: its size is {width}x{height} pixels.")
    if frame_count == 0:
        raise MediaError(f"Video {source} cannot be read: it has no frames.")
    if not rate or rate <= 0:
        raise MediaError(f"Video {source} cannot be read: it does not say how many frames it shows per second.")
    fps = float(rate)
    return VideoHeader(format=name, width=width, height=height, frame_count=frame_count, fps=fps, duration=frame_count / fps)
