"""Messages as frames: what is sent arrives, nothing is copied on the way out, and damaged frames are refused in words."""

from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from numpy.typing import NDArray

from sightline.wire import FrameDecoder, to_frames


@dataclass(frozen=True, eq=False)
class Inner:
    ids: NDArray[np.int32]
    weights: NDArray[np.float32] | None
    pictures: tuple[NDArray[np.uint8], ...]
    by_key: dict[bytes, NDArray[Any]]
    pairs: tuple[tuple[int, float], ...] = ()
    data: bytes = b""


class Both(msgspec.Struct, frozen=True, tag="both"):
    number: int
    inner: Inner
    masks: list[NDArray[np.bool_]] = []
    last: Inner | None = None


class Plain(msgspec.Struct, frozen=True, tag="plain"):
    text: str


class One(msgspec.Struct, frozen=True, tag="one"):
    array: NDArray[np.int32]


DECODER: FrameDecoder[Both | Plain] = FrameDecoder(Both | Plain)
ONE: FrameDecoder[One] = FrameDecoder(One)


def same(left: Any, right: Any) -> bool:
    """Slow and obvious: equal types, and equal values, dtypes and shapes all the way down."""
    if isinstance(left, np.ndarray):
        return (left.dtype, left.shape, left.tobytes()) == (right.dtype, right.shape, right.tobytes())
    if type(left) is not type(right):
        return False
    if is_dataclass(left):
        return all(same(getattr(left, field.name), getattr(right, field.name)) for field in fields(left))
    if isinstance(left, msgspec.Struct):
        return all(same(getattr(left, name), getattr(right, name)) for name in left.__struct_fields__)
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    return bool(left == right)


def arrays(dtype: Any) -> st.SearchStrategy[NDArray[Any]]:
    """Of any shape, scalars and empty ones included, some of them with strides."""
    shapes = npst.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)
    whole = npst.arrays(dtype, shapes)
    return whole | whole.map(np.transpose) | whole.filter(lambda array: array.ndim > 0).map(lambda array: array[::2])


DTYPES = st.sampled_from([np.bool_, np.int8, np.uint16, np.int64, np.float16, np.float64, np.complex64])
INNER = st.builds(
    Inner,
    ids=arrays(np.int32),
    weights=st.none() | arrays(np.float32),
    pictures=st.lists(arrays(np.uint8), max_size=3).map(tuple),
    by_key=st.dictionaries(st.binary(max_size=5), DTYPES.flatmap(arrays), max_size=3),
    pairs=st.lists(st.tuples(st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False)), max_size=3).map(tuple),
    data=st.binary(max_size=20),
)
BOTH = st.builds(Both, st.integers(0, 2**60), INNER, masks=st.lists(arrays(np.bool_), max_size=2), last=st.none() | INNER)


def as_sent(frames: list[Any]) -> list[bytes]:
    return [np.asarray(frame).tobytes() if isinstance(frame, np.ndarray) else bytes(frame) for frame in frames]


@given(BOTH)
def test_a_message_arrives_as_it_was_sent(message: Both) -> None:
    """Red when frames change places, a scalar becomes a row, or an array comes with another dtype or shape."""
    got = DECODER.decode(as_sent(to_frames(message)))
    assert same(got, message)


def test_a_message_of_plain_values_is_one_frame() -> None:
    frames = to_frames(Plain("hello"))
    assert len(frames) == 1 and DECODER.decode(frames) == Plain("hello")


def test_arrays_are_not_copied_at_either_end() -> None:
    """Red when an image is copied into a message, or out of one."""
    sent = np.arange(12, dtype=np.int32).reshape(3, 4)
    _, frame = to_frames(One(sent))
    assert np.shares_memory(np.asarray(frame), sent)
    arrived = bytearray(sent.tobytes())
    got = ONE.decode([to_frames(One(sent))[0], arrived]).array
    assert np.shares_memory(got, np.frombuffer(arrived, np.uint8)) and not got.flags.writeable


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        (np.array([None]), "an array of dtype"),
        (np.array(["text"]), "an array of dtype"),
        (np.zeros(2, ">i4"), "an array of dtype"),
        (np.zeros(2, "i4,f4"), "an array of dtype"),
        (np.zeros(2, "M8[s]"), "an array of dtype"),
        (np.int32(3), "hold a int32"),
        (object(), "hold a object"),
    ],
)
def test_what_has_no_plain_bytes_is_not_sent(value: Any, sentence: str) -> None:
    with pytest.raises(TypeError, match=sentence):
        to_frames(One(value))


def header(*head: Any) -> bytes:
    return msgspec.msgpack.encode({"type": "one", "array": list(head)})


@pytest.mark.parametrize(
    ("frames", "sentence"),
    [
        ([], "no frames"),
        ([b""], "header cannot be read"),
        ([header(0, "int32", [2])], "frame 0 of 0"),
        ([header(1, "int32", [2]), b"12345678"], "frame 1 of 1"),
        ([header(-1, "int32", [2]), b"12345678"], "frame -1 of 1"),
        ([header(0, "int32", [2]), b"1234567"], "7 bytes for an array of int32 of shape \\[2\\]"),
        ([header(0, "int32", [3]), b"12345678"], "8 bytes for an array"),
        ([header(0, "int32", [2**62, 2**62]), b"12345678"], "8 bytes for an array"),
        ([header(0, "int32", [2**62, 0]), b""], "too big"),
        ([header(0, "int32", [1] * 65), b"1234"], "maximum supported dimension"),
        ([header(0, "int32", [-2]), b"12345678"], "not an index, a dtype and a shape"),
        ([header(0, "int32", [2**63]), b"12345678"], "not an index, a dtype and a shape"),
        ([header(0, "int32", [True]), b"1234"], "not an index, a dtype and a shape"),
        ([header(0, "object", [1]), b"12345678"], "not an index, a dtype and a shape"),
        ([header(0, "int32"), b"12345678"], "not an index, a dtype and a shape"),
        ([header(0, "int32", "two"), b"12345678"], "not an index, a dtype and a shape"),
        ([header(0, "int64", [1]), b"12345678"], "an array of int64 where int32 belongs"),
        ([header(0, "int32", [2]), b"12345678", b""], "1 frames more"),
        ([msgspec.msgpack.encode({"type": "one", "array": None})], "header cannot be read"),
        ([msgspec.msgpack.encode({"type": "two"})], "header cannot be read"),
    ],
)
def test_a_frame_that_lies_is_refused(frames: list[Any], sentence: str) -> None:
    """Red when a lie about an array is believed, or ends in anything but a ValueError."""
    with pytest.raises(ValueError, match=sentence):
        ONE.decode(frames)


@given(BOTH, st.data())
def test_a_damaged_message_is_refused_or_well_typed(message: Both, data: st.DataObject) -> None:
    """A byte changed, a frame lost, doubled or cut: a ValueError, or a message that every reader can take for one."""
    frames = as_sent(to_frames(message))
    place = data.draw(st.integers(0, len(frames) - 1))
    damage = data.draw(st.sampled_from(["byte", "lost", "double", "cut"]))
    if damage == "byte" and frames[place]:
        at = data.draw(st.integers(0, len(frames[place]) - 1))
        changed = bytes([data.draw(st.integers(0, 255))])
        frames[place] = frames[place][:at] + changed + frames[place][at + 1 :]
    elif damage == "lost":
        del frames[place]
    elif damage == "double":
        frames.insert(place, frames[place])
    elif damage == "cut":
        frames[place] = frames[place][: len(frames[place]) // 2]
    try:
        got = DECODER.decode(frames)
    except ValueError:
        return
    again = DECODER.decode(as_sent(to_frames(got)))
    assert same(again, got)


def test_a_header_nested_without_end_is_refused() -> None:
    anything: FrameDecoder[Any] = FrameDecoder(Any)
    with pytest.raises(ValueError, match="cannot be read"):
        anything.decode([b"\x91" * 100_000])
