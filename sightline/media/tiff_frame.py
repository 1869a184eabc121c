"""What the tags of a TIFF say about its pixels: enough to know that decoders mean the same by it.

Those are files of one picture, three samples of 8 bits in RGB beside each other, in a coding that loses nothing.
"""

from dataclasses import dataclass
from typing import Any

from PIL.TiffImagePlugin import TiffImageFile

from sightline.media.pillow import open_image, pillow_errors

_CODINGS = {1: "plain", 5: "lzw", 8: "deflate", 32946: "deflate"}
_BITS, _COMPRESSION, _COLOURS, _FILL_ORDER, _ORIENTATION, _SAMPLES, _PLANES, _PREDICTOR = 258, 259, 262, 266, 274, 277, 284, 317
_SUB_FILES, _EXTRA_SAMPLES, _SAMPLE_FORMAT = 330, 338, 339
_STRIPS, _TILES = (273, 279), (324, 325)  # where they start, how many bytes they have
# Tag, what it must say, and what it says where it is missing.
_WANTED: tuple[tuple[int, Any, Any], ...] = (
    (_BITS, (8, 8, 8), None),
    (_COLOURS, 2, None),
    (_SAMPLES, 3, 1),
    (_PLANES, 1, 1),
    (_FILL_ORDER, 1, 1),
    (_ORIENTATION, 1, 1),
    (_SUB_FILES, None, None),
    (_EXTRA_SAMPLES, None, None),
    (_SAMPLE_FORMAT, (1, 1, 1), (1, 1, 1)),
)


@dataclass(frozen=True)
class TiffFrame:
    height: int
    width: int
    coding: str  # plain, lzw or deflate
    differences: bool  # whether samples are stored as differences to those on their left


def read_everyday_frame(data: bytes, source: str) -> TiffFrame | None:
    """None where decoders may differ, or where the file is not whole."""
    if data[:4] not in (b"II*\0", b"MM\0*"):  # not BigTIFF
        return None
    with pillow_errors(source):
        image = open_image(data)
        if not isinstance(image, TiffImageFile) or image.mode != "RGB":
            return None
        tags = image.tag_v2
        predictor, coding = tags.get(_PREDICTOR, 1), _CODINGS.get(tags.get(_COMPRESSION, 1))
        fine = all(tags.get(tag, default) == wanted for tag, wanted, default in _WANTED)
        if not fine or coding is None or predictor not in (1, 2) or (coding == "plain" and predictor == 2) or tags.next:
            return None
        if not _is_whole(tags, len(data)):
            return None
        return TiffFrame(image.height, image.width, coding, predictor == 2)


def _is_whole(tags: Any, size: int) -> bool:
    """Whether all that the tags name lies in the file."""
    starts, counts = (tags.get(tag, ()) for tag in (_TILES if _TILES[0] in tags else _STRIPS))
    return len(starts) == len(counts) > 0 and all(start + count <= size for start, count in zip(starts, counts, strict=True))
