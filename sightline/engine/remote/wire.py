"""What a server asks of another that runs its vision tower, and what it is answered: binary messages over HTTP. No torch.

```
GET  /v1/encoder          ──► Identity as JSON: which tower, which processor, which numbers
POST /v1/encoder/encode   ◄── request:  head length (4 bytes, little-endian) │ EncodeHead as msgpack │ the encoded file
                          ──► answer:   head length                          │ RowsHead as msgpack   │ rows as in memory
```

The file goes over, not its pixels: a 1080p JPEG has half a megabyte, its patches 12 in 16-bit numbers. Nothing is pickled;
types, lengths, dtypes and shapes are checked at both ends.
"""

import struct
from typing import Any, Literal, TypeVar

import msgspec

from sightline.types import EMBEDDINGS, FRAMES, PDF, MediaItem

PROTOCOL = 1
HANDSHAKE, ENCODE = "/v1/encoder", "/v1/encoder/encode"
CONTENT_TYPE = "application/x-sightline-encoder"
_LENGTH = struct.Struct("<I")
LENGTH_BYTES = _LENGTH.size
_MOST_HEAD = 16 * 1024 * 1024  # bytes; a clip of an hour names its frames and their times
ITEM_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
_NO_FILES = ("RGB", EMBEDDINGS, PDF, FRAMES)  # formats
T = TypeVar("T")
Dtype = Literal["float32", "float16", "bfloat16"]


class WireError(ValueError):
    """A message is not what it should be; the text is a clause."""


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """What two servers must have in common for one to encode for the other, and which decoder the other has."""

    protocol: int
    tower: str  # digest of its weights
    processor: str  # digest of what decides the patches of given bytes
    dtype: str  # of the tower's numbers and of rows; which of its layers are in 8-bit floats
    width: int  # numbers of a row
    decoder: str = ""  # the library that decodes images on the GPU; empty: none does
    kinds: tuple[str, ...] = ()  # of files that it decodes

    @property
    def name(self) -> str:
        """Of what must be equal, in a word: each request says whom it takes the other for."""
        return f"{self.protocol}-{self.tower[:16]}-{self.processor[:16]}-{self.dtype.replace(' ', '_')}-{self.width}"

    def difference(self, other: "Identity") -> str | None:
        """How the other one differs, as a clause; None: it does not."""
        if self.protocol != other.protocol:
            return f"it speaks protocol {other.protocol}, not {self.protocol}"
        if self.dtype != other.dtype:
            return f"its dtype is {other.dtype}, not {self.dtype}"
        if self.width != other.width:
            return f"its embeddings have {other.width} numbers, not {self.width}"
        if self.processor != other.processor:
            return "its processor settings differ"
        if self.tower != other.tower:
            return "its tower has other weights"
        return None


class EncodeHead(msgspec.Struct, frozen=True):
    identity: str  # Identity.name of the one that is asked
    item: MediaItem  # without bytes


class RowsHead(msgspec.Struct, frozen=True):
    digest: bytes  # of the file
    dtype: Dtype
    shape: tuple[int, int]  # [rows, width]
    decoder: str  # that made the pixels: the name of the GPU's library, or "cpu"
    seconds: float  # that it took, waiting included


def pack(head: Any) -> bytes:
    """What goes before the payload."""
    encoded = msgspec.msgpack.encode(head)
    return _LENGTH.pack(len(encoded)) + encoded


def unpack(kind: type[T], message: bytes | bytearray | memoryview) -> tuple[T, memoryview]:
    """The head, and the payload as it lies in the message. Raises WireError."""
    view = memoryview(message)
    end = LENGTH_BYTES + head_length(view[:LENGTH_BYTES], len(view))
    return read_head(kind, view[LENGTH_BYTES:end]), view[end:]


def head_length(beginning: bytes | memoryview, whole: int) -> int:
    """Of a message that has `whole` bytes, from its first ones."""
    if len(beginning) < LENGTH_BYTES:
        raise WireError(f"it has {whole} bytes and no head")
    length: int = _LENGTH.unpack(beginning)[0]
    if length > _MOST_HEAD or LENGTH_BYTES + length > whole:
        raise WireError(f"its head would have {length} bytes, the whole has {whole}")
    return length


def read_head(kind: type[T], head: bytes | memoryview) -> T:
    try:
        return msgspec.msgpack.decode(head, type=kind)
    except (msgspec.DecodeError, RecursionError) as error:
        raise WireError(f"its head cannot be read: {error}") from None


def check_rows(head: RowsHead, payload_bytes: int, item: MediaItem, identity: Identity) -> None:
    """Whether an answer with so many bytes behind its head is one for the item. Raises WireError."""
    if head.digest != item.ref.digest:
        raise WireError("it is for another file")
    wanted = identity.dtype.split(" ")[0]
    if head.dtype != wanted:
        raise WireError(f"it has numbers of {head.dtype}, not {wanted}")
    if head.shape != (item.rows, identity.width):
        raise WireError(f"it has the shape {list(head.shape)}, not {[item.rows, identity.width]}")
    if payload_bytes != rows_bytes(item, identity):
        raise WireError(f"it has {payload_bytes} bytes of rows, not {rows_bytes(item, identity)}")


def rows_bytes(item: MediaItem, identity: Identity) -> int:
    return item.rows * identity.width * ITEM_BYTES[identity.dtype.split(" ")[0]]


def is_plain_file(item: MediaItem) -> bool:
    """Whether its bytes are a file that says itself what it is: not raw pixels, given embeddings, a page of a PDF or a list of
    images, which the tower here encodes."""
    return not item.ref.is_embeddings and not item.ref.file_digest and item.ref.header.format not in _NO_FILES
