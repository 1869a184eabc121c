"""What decoding will cost, known from a header before a pixel is decoded: work, and memory while it lasts.

Work is in megapixels: one is what a megapixel of an ordinary JPEG takes, some 6 ms of one core. Measured once
with Pillow 13 on one core of an AMD EPYC, pictures of 3000x3000 (flat, photo, noise), in ms and in bytes per pixel at the peak:

format       ms per megapixel       bytes   counted as work per megapixel
JPEG         5.7, 6.0, 8.5          4       1 per scan
 progressive 8.6, 11, 27 (4:2:0)    7       1 per scan: a scan that says little is cheap, one that says much is not
             14, 15, 43 (4:4:4)     10
PNG          12, 18, 12             4       1 per channel
 plain       x 0.63, 0.58, 0.52     9       1 per channel: by media/png_pixels.py, three copies of the rows for a moment
TIFF         5.5, 15, 8             4       1 per channel
GIF          4.2, 5.7, 8.2          1       1 per channel
WEBP         13, 14, 46             16      2 per channel
AVIF         11, 18, 50             9.4     2 per channel
JPEG2000     31, 213, 409           19.5    8 per channel
PDF          3, 5.5, 4.2            6.6     2 per channel: what a page draws is not known before (blank, text, photo)
"""

from sightline.types import EMBEDDINGS, PDF, ImageHeader, MediaItem, VideoHeader

JPEG_FORMATS = ("JPEG", "MPO")
_NOTHING_TO_DECODE = ("RGB", EMBEDDINGS)  # pixels that were handed over decoded, or what the tower makes of them
_WORK_PER_CHANNEL = {"WEBP": 2, "AVIF": 2, "JPEG2000": 8, PDF: 2}
_BYTES_PER_PIXEL = {"WEBP": 16, "AVIF": 10, "JPEG2000": 20, PDF: 10}
_BYTES_OF_SCANS = 10  # a JPEG of several scans: all coefficients of the picture beside its pixels
_BYTES_OF_ALPHA = 8  # pixels with alpha beside those without, four bytes each
_COPIES_OF_PNG = 3  # of its rows
_BYTES_OF_OTHERS = 7  # Pillow has four bytes for a pixel, the array that is made of them three


def image_megapixels(header: ImageHeader) -> float:
    """Megapixels of work that decoding takes."""
    megapixels = header.width * header.height / 1e6
    if header.format in _NOTHING_TO_DECODE:
        return 0.0
    if header.format in JPEG_FORMATS:
        return megapixels * max(header.scans, 1)
    return megapixels * header.channels * _WORK_PER_CHANNEL.get(header.format, 1)


def frames_to_decode(item: MediaItem) -> int:
    """Frames of a video up to the last one that the model sees: decoding starts at the first."""
    return item.frame_indices[-1] + 1


def video_gigapixels(item: MediaItem) -> float:
    """Billions of pixels in the frames that decoding goes over."""
    return frames_to_decode(item) * item.ref.header.width * item.ref.header.height / 1e9


def image_bytes(header: ImageHeader) -> int:
    """Memory that decoding takes at its peak, the pixels that come out of it included."""
    pixels = header.width * header.height
    if header.format in _NOTHING_TO_DECODE:
        return 0  # the pixels are the bytes that were handed over
    if header.format in JPEG_FORMATS and header.scans > 1:
        return _BYTES_OF_SCANS * pixels
    most = _BYTES_OF_ALPHA if header.channels > 3 else _BYTES_OF_OTHERS
    if header.format == "PNG":
        most = max(most, _COPIES_OF_PNG * header.channels)
    return _BYTES_PER_PIXEL.get(header.format, most) * pixels


def frame_bytes(header: ImageHeader | VideoHeader) -> int:
    """Of one decoded frame, three bytes a pixel."""
    return 3 * header.width * header.height
