"""Messages between processes as frames: a msgpack header, then the bytes of each numpy array as they lie in memory. No pickle.

```
message   Add(number=7, submission=Submission(request=Request(token_ids=array, positions=array, …), …))
frames    header │ token_ids │ positions          in the header an array is [index of its frame, dtype, shape]
```

A message is a msgspec Struct or a dataclass of plain values, arrays, containers and other such messages. Its fields are typed:
an array as `NDArray[np.int32]`, or `NDArray[Any]` where any dtype will do. Arrays are sent from where they are; at the other
end they are read-only views of the frames. What comes in is checked against the types; what does not fit is a ValueError.
"""

import functools
import math
import threading
from collections.abc import Sequence
from typing import Any, Generic, TypeVar, get_args, get_origin

import msgspec
import numpy as np
from numpy.typing import NDArray

T = TypeVar("T")
# Numbers and booleans, in this machine's byte order.
_DTYPES = {
    name: np.dtype(name)  # by name: two letters stand for one width, and only one of them is the type that names it
    for name in "bool int8 uint8 int16 uint16 int32 uint32 int64 uint64 float16 float32 float64 complex64 complex128".split()
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


def to_frames(message: Any) -> list[Any]:
    """The header and the arrays, each bytes or something that has a buffer. Only an array that is not contiguous is copied."""
    arrays: list[NDArray[Any]] = []

    def header_of(value: Any) -> tuple[int, str, tuple[int, ...]]:
        if not isinstance(value, np.ndarray):
            raise TypeError(f"A message cannot hold a {type(value).__name__}.")
        name = _NAMES.get(value.dtype)
        if name is None:
            raise TypeError(f"A message cannot hold an array of {value.dtype!r}.")
        arrays.append(np.ascontiguousarray(value))
        return len(arrays) - 1, name, value.shape

    header = msgspec.msgpack.Encoder(enc_hook=header_of).encode(message)
    return [header, *arrays]


class FrameDecoder(Generic[T]):
    """Reads messages of one type, or of a union of tagged Structs."""

    def __init__(self, kind: Any) -> None:
        self._decoder: msgspec.msgpack.Decoder[T] = msgspec.msgpack.Decoder(kind, dec_hook=self._array)
        self._lock = threading.Lock()  # the arrays of one message at a time
        self._arrays: Sequence[Any] = ()
        self._taken = 0

    def decode(self, frames: Sequence[Any]) -> T:
        if not frames:
            raise ValueError("A message has no frames.")
        with self._lock:
            self._arrays, self._taken = frames[1:], 0
            try:
                message = self._decoder.decode(frames[0])
            except (msgspec.DecodeError, RecursionError) as error:
                raise ValueError(f"A message's header cannot be read: {error}") from error
            finally:
                left, self._arrays = len(self._arrays) - self._taken, ()
        if left:
            raise ValueError(f"A message has {left} frames more than its header names.")
        return message

    def _array(self, kind: Any, head: Any) -> NDArray[Any]:
        """An array of the type `kind`, of which the header says `head`. msgspec says where it stands if it is refused."""
        index, name, shape = _checked(head)
        dtype = _DTYPES[name]
        if name not in (allowed := _dtypes_of(kind)):
            raise ValueError(f"an array of {name} where {' or '.join(allowed)} belongs")
        if index != self._taken or index >= len(self._arrays):  # each frame once, in order
            raise ValueError(f"array {self._taken} is said to be frame {index} of {len(self._arrays)}")
        self._taken += 1
        frame = memoryview(self._arrays[index])
        if frame.nbytes != math.prod(shape) * dtype.itemsize:
            raise ValueError(f"{frame.nbytes} bytes for an array of {name} of shape {list(shape)}")
        array: NDArray[Any] = np.ndarray(shape, dtype, frame)
        array.flags.writeable = False
        return array


@functools.cache
def _dtypes_of(kind: Any) -> tuple[str, ...]:
    """The dtypes that an array of the type `kind` may have."""
    if (get_origin(kind) or kind) is not np.ndarray:
        raise NotImplementedError(f"A message cannot hold a {kind}.")
    scalar = get_args(get_args(kind)[1])[0] if get_args(kind) else Any  # NDArray[X] is ndarray[…, dtype[X]]
    return tuple(name for name, dtype in _DTYPES.items() if scalar is Any or np.issubdtype(dtype, scalar))


def _checked(head: Any) -> tuple[int, str, tuple[int, ...]]:
    if type(head) is list and len(head) == 3:
        index, name, shape = head
        if type(index) is int and type(name) is str and name in _DTYPES and _is_shape(shape):
            return index, name, tuple(shape)
    raise ValueError("what stands for an array is not an index, a dtype and a shape")


def _is_shape(value: Any) -> bool:
    return type(value) is list and all(type(size) is int and 0 <= size < 2**63 for size in value)
