"""Pictures, and embeddings in place of pictures, that come as numbers: numpy arrays or torch tensors, or raw bytes over HTTP.

Nothing is unpickled, and torch is not imported: whoever hands over a tensor has it.
"""

import hashlib
import math
import struct
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from sightline.errors import MediaError
from sightline.types import EMBEDDINGS, EmbeddingsHeader, MediaRef

_CHANNELS = (1, 3, 4)
# Numbers as they lie in memory, little-endian; of bfloat16 numpy knows the bits alone.
_STORED: dict[str, np.dtype[Any]] = {"float32": np.dtype("<f4"), "float16": np.dtype("<f2"), "bfloat16": np.dtype("<u2")}
DTYPES = tuple(_STORED)


@dataclass(frozen=True)
class ImageEmbeddings:
    """What the language model is to see in place of an image, as LLM.embed_images(…, deepstack=True) gives it."""

    data: bytes = field(repr=False)
    dtype: str
    shape: tuple[int, int]  # rows, and numbers of each
    width: int  # of the image, in pixels as displayed: how many rows there are, and their positions, follow from its size
    height: int

    @classmethod
    def of(cls, rows: Any, *, width: int, height: int) -> "ImageEmbeddings":
        """`rows` [rows, embedding_width]: an array or a tensor of floating-point numbers, on any device."""
        tensor = hasattr(rows, "detach") and rows.is_floating_point()
        numbers = _as_numpy(rows.float() if tensor else rows)  # numpy has no bfloat16
        if numbers is None or numbers.ndim != 2 or numbers.dtype.kind != "f":
            raise MediaError(
                f"Image embeddings must be [rows, embedding_width] floating-point numbers, not {_described(rows)}."
            )
        whole = np.ascontiguousarray(numbers, "<f4")
        return cls(whole.tobytes(), "float32", (whole.shape[0], whole.shape[1]), width, height)


def is_array(source: Any) -> bool:
    return isinstance(source, np.ndarray) or (hasattr(source, "detach") and hasattr(source, "numpy"))


def picture_of(array: Any) -> Image.Image:
    """A picture of bytes: [height, width], [height, width, channels] or [channels, height, width]. Where both could be meant,
    an array has its channels last, a tensor first."""
    found = _as_numpy(array)
    if found is None or found.dtype != np.uint8:
        raise MediaError(f"An image that is an array must be of uint8, not {_described(array)}.")
    if found.ndim == 3:
        last, first = found.shape[2] in _CHANNELS, found.shape[0] in _CHANNELS
        if first and (not last or hasattr(array, "detach")):
            found = found.transpose(1, 2, 0)
        found = found[:, :, 0] if found.shape[2] == 1 else found
    if found.ndim not in (2, 3) or (found.ndim == 3 and found.shape[2] not in _CHANNELS) or 0 in found.shape:
        raise MediaError(f"An image that is an array must have height, width and 1, 3 or 4 channels, not {_described(array)}.")
    return Image.fromarray(np.ascontiguousarray(found))


def embeddings_ref(given: ImageEmbeddings, name: str) -> MediaRef:
    """Checked, but for what the model decides: how many rows there must be, and how wide they are."""
    stored = _STORED.get(given.dtype)
    if stored is None:
        raise MediaError(f"Image embeddings {name} are of {given.dtype!r}; they must be of one of {', '.join(DTYPES)}.")
    needed = math.prod(given.shape) * stored.itemsize
    if min(given.shape) < 1 or len(given.data) != needed:
        shape = f"{list(given.shape)} numbers of {given.dtype}"
        raise MediaError(f"Image embeddings {name} have {len(given.data):,} bytes; {shape} are {needed:,}.")
    numbers = np.frombuffer(given.data, stored)
    finite = (numbers & 0x7F80) != 0x7F80 if given.dtype == "bfloat16" else np.isfinite(numbers)
    if not finite.all():
        raise MediaError(f"Image embeddings {name} have numbers that are not finite.")
    head = struct.pack("<4s4Q", b"EMBD", given.width, given.height, *given.shape) + given.dtype.encode() + b"\0"
    digest = hashlib.sha256(head)
    digest.update(given.data)
    header = EmbeddingsHeader(EMBEDDINGS, given.width, given.height, 1, dtype=given.dtype, shape=given.shape)
    return MediaRef("image", given.data, digest.digest(), header, name)


def _as_numpy(array: Any) -> NDArray[Any] | None:
    if hasattr(array, "detach"):
        array = array.detach().cpu()
        return np.asarray(array.numpy()) if str(array.dtype) != "torch.bfloat16" else None
    return array if isinstance(array, np.ndarray) else None


def _described(array: Any) -> str:
    shape, dtype = getattr(array, "shape", None), getattr(array, "dtype", None)
    return f"{list(shape)} of {dtype}" if shape is not None else f"a {type(array).__name__}"
