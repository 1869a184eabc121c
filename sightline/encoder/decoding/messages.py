"""What an engine and a helper process that decodes say to each other, over a socket: msgpack with its length in front.

```
to the helper     Task with a file descriptor for the pixels, then the encoded bytes
from the helper   Started, once; then Begun and Decoded │ Failed for each task
```
"""

import socket
import struct
from typing import Literal, TypeAlias

import msgspec

from sightline.types import ImageHeader, VideoHeader

_LENGTH = struct.Struct("<I")


class DecodeTask(msgspec.Struct, frozen=True):
    """One item. Its pixels are written to the file that comes along, which has their size."""

    kind: Literal["image", "video"]
    image: ImageHeader | None
    video: VideoHeader | None
    source: str
    data_bytes: int
    frame_indices: tuple[int, ...]
    shape: tuple[int, int, int, int]  # of the result: frames, height, width, 3
    resize: bool
    memory_bytes: int  # more than this, beside what the process has, it may not allocate


class Started(msgspec.Struct, frozen=True, tag="started"):
    """Python and its modules are there: time that an item takes is counted from here."""


class Begun(msgspec.Struct, frozen=True, tag="begun"):
    """The task is here whole. If the process dies now, the item may be why."""


class Decoded(msgspec.Struct, frozen=True, tag="decoded"):
    seconds: float


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """The item is at fault, or the machine, which is short of memory: the sentence of the MediaError."""

    sentence: str
    is_short_of_memory: bool = False


DecodeReply: TypeAlias = Decoded | Failed
Message: TypeAlias = Started | Begun | DecodeReply

_encoder = msgspec.msgpack.Encoder()
_tasks = msgspec.msgpack.Decoder(DecodeTask)
_replies: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)


class Closed(Exception):
    """The other side is gone."""


def send_task(channel: socket.socket, task: DecodeTask, data: bytes, descriptor: int) -> None:
    message = _encoder.encode(task)
    socket.send_fds(channel, [_LENGTH.pack(len(message))], [descriptor])
    channel.sendall(message)
    channel.sendall(data)


def receive_task(channel: socket.socket) -> tuple[DecodeTask, bytes, int]:
    """The task, the encoded bytes, and the descriptor, which is the caller's to close."""
    length, descriptors, _, _ = socket.recv_fds(channel, _LENGTH.size, 1)
    if not length:
        raise Closed
    length += _receive(channel, _LENGTH.size - len(length))
    task = _tasks.decode(_receive(channel, _LENGTH.unpack(length)[0]))
    return task, _receive(channel, task.data_bytes), descriptors[0]


def send_reply(channel: socket.socket, reply: Message) -> None:
    message = _encoder.encode(reply)
    channel.sendall(_LENGTH.pack(len(message)) + message)


def receive_reply(channel: socket.socket) -> Message:
    return _replies.decode(_receive(channel, _LENGTH.unpack(_receive(channel, _LENGTH.size))[0]))


def _receive(channel: socket.socket, count: int) -> bytes:
    pieces = []
    while count:
        piece = channel.recv(count, socket.MSG_WAITALL)  # in one piece nearly always, so that nothing is copied
        if not piece:
            raise Closed
        pieces.append(piece)
        count -= len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)
