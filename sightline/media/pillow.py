"""The one door to Pillow: which formats it may try, and what its many exceptions become."""

import contextlib
import functools
import io
from collections.abc import Iterator

import PIL
from PIL import Image, ImageFile, UnidentifiedImageError

from sightline.errors import MediaError

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


def open_image(data: bytes) -> ImageFile.ImageFile:
    """Parses the header only; pixels are decoded when they are asked for."""
    return Image.open(io.BytesIO(data), formats=formats())


@contextlib.contextmanager
def pillow_errors(source: str) -> Iterator[None]:
    """Turns whatever Pillow raises on bad input into one MediaError.

    On malformed files Pillow raises OSError, ValueError, TypeError, SyntaxError, struct.error, EOFError, KeyError, IndexError,
    MemoryError, DecompressionBombError and others, from deep inside its parsers: no narrower net holds them all. Its own limit
    on pixels (twice Image.MAX_IMAGE_PIXELS) belongs to the whole process, so it is left alone and stands beside ours.
    """
    try:
        yield
    except MediaError:
        raise
    except UnidentifiedImageError as error:
        raise MediaError(
            f"Image {source} cannot be read: it is none of {', '.join(formats())}, or its header is broken."
        ) from error
    except Exception as error:
        raise MediaError(f"Image {source} cannot be read: {_reason(error)}.") from error


def _reason(error: Exception) -> str:
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__
