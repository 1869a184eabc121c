"""The one door to Pillow: which formats it may try, and what its many exceptions become."""

import functools
import io
import re
import warnings

import PIL
from PIL import Image, ImageFile, UnidentifiedImageError

from sightline.errors import without_addresses
from sightline.media.decoder_errors import HEADER_BYTES, Cancelled, DecoderErrors, check_cancelled, never

# Pillow knows some forty formats; a server should parse only what people send as pictures.
_WANTED = ("JPEG", "MPO", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "AVIF", "JPEG2000")


# Since version 13 Pillow changes the number of rows first where that saves much work; before, it always did columns first.
SOMETIMES_ROWS_FIRST = int(PIL.__version__.split(".")[0]) >= 13


def rows_first(height: int, width: int, new_height: int, new_width: int) -> bool:
    """The order in which the installed Pillow resizes: True when it changes the number of rows before that of columns."""
    saved = height - new_height
    return SOMETIMES_ROWS_FIRST and saved > 0 and saved > 2 * (width - new_width)


@functools.cache
def formats() -> tuple[str, ...]:
    """The wanted formats that this build of Pillow has; Image.open fails with a KeyError on a name it does not know."""
    Image.init()
    return tuple(name for name in _WANTED if name in Image.OPEN)


# What parsing a header may read: far more than honest files need, and not much more than a second.
MAX_HEADER_READS = 20_000
MAX_HEADER_BYTES = 48_000_000  # Pillow reads the tags of a TIFF two or three times


class HeaderTooLong(Exception):
    """Parsing a header came to its end; none of the exceptions that Pillow's parsers catch."""


class MeteredFile(io.BytesIO):
    """Bytes as a file that ends the parsing of a header which goes on and on, and a decode that is cancelled.

    Pillow's parsers read piece by piece in Python, some byte by byte: a header of megabytes in a small format (comments in a
    PPM or GIF, text in a PNG, boxes in a JPEG 2000) would take them seconds to minutes. Reading all that is left at once, as
    for WEBP and AVIF, is not counted.
    """

    def __init__(self, data: bytes, cancelled: Cancelled) -> None:
        super().__init__(data)
        self._cancelled = cancelled
        self._reads_left = MAX_HEADER_READS
        self._bytes_left = MAX_HEADER_BYTES
        self.metered = True

    def read(self, size: int | None = -1, /) -> bytes:
        check_cancelled(self._cancelled)
        data = super().read(size)
        if self.metered and size is not None and size >= 0:
            self._reads_left -= 1
            self._bytes_left -= len(data)
            if self._reads_left < 0 or self._bytes_left < 0:
                raise HeaderTooLong("its header is too long or in too many pieces")
        return data


def open_image(data: bytes, cancelled: Cancelled = never) -> ImageFile.ImageFile:
    """Parses the header only; pixels are decoded when they are asked for, in blocks of 64 kB of the file in most formats."""
    if data[4:8] == b"ftyp":
        data = without_exif_items(data)
    return Image.open(MeteredFile(data, cancelled), formats=formats())


# The entry of an item in an AVIF file: version, flags, number, protection, type; see infe in ISO/IEC 14496-12.
_EXIF_ITEM = re.compile(rb"(infe[\x02\x03].{3}(?:.{2}|.{4}).{2})Exif", re.DOTALL)


def without_exif_items(avif: bytes) -> bytes:
    """The file with its EXIF data hidden from decoders.

    An AVIF is turned by properties of its own, which overrule EXIF; where the two differ, Pillow writes EXIF anew when it opens
    the file, which takes seconds per megabyte of it.
    """
    return _EXIF_ITEM.sub(rb"\1skip", avif)


def open_for_pixels(data: bytes, cancelled: Cancelled = never) -> ImageFile.ImageFile:
    """As open_image; what is read after the header is not counted."""
    image = open_image(data, cancelled)
    if isinstance(image.fp, MeteredFile):
        image.fp.metered = False
    return image


def silence_warnings() -> None:
    """For a process that reads strangers' files: Python prints and remembers each text that Pillow has to say of them."""
    warnings.filterwarnings("ignore", module=r"PIL\.")


def pillow_errors(source: str, needed: int = HEADER_BYTES) -> DecoderErrors:
    """Turns whatever Pillow raises on bad input into one MediaError. `needed` are the bytes that the picture takes.

    On malformed files Pillow raises OSError, ValueError, TypeError, SyntaxError, struct.error, EOFError, KeyError, IndexError,
    MemoryError, DecompressionBombError and others, from deep inside its parsers: no narrower net holds them all. Its own limit
    on pixels (twice Image.MAX_IMAGE_PIXELS) belongs to the whole process, so it is left alone and stands beside ours.
    """

    def sentence(error: Exception) -> str:
        if isinstance(error, UnidentifiedImageError):
            return f"Image {source} cannot be read: it is none of {', '.join(formats())}, or its header is broken."
        return f"Image {source} cannot be read: {_reason(error)}."

    return DecoderErrors(sentence, f"Image {source}", needed)


def _reason(error: Exception) -> str:
    return without_addresses(" ".join(str(error).split()).rstrip(".")) or type(error).__name__
