"""A helper process that decodes one item at a time: `python -m sightline.encoder.decoding.process`, with a socket as its stdin.

What takes long is decoded here. It may be killed at any moment, and a decoder that crashes or takes too much memory takes no
engine with it. The process ends when the socket closes, so it never outlives the engine.
"""

import contextlib
import errno
import os
import queue
import socket
import threading
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from sightline.child_process import die_with_parent
from sightline.encoder.decoding.messages import (
    Begun,
    Closed,
    Decoded,
    DecodeReply,
    DecodeTask,
    Failed,
    Started,
    receive_task,
    send_reply,
)
from sightline.encoder.decoding.shared_memory import as_array
from sightline.errors import HostMemoryError, MediaError
from sightline.host_memory import is_short_of, limit_more_memory, no_memory_limit
from sightline.media.decode import decode_image, decode_image_resized, video_frames
from sightline.media.decoder_errors import not_enough_memory
from sightline.media.pdfium import render_page
from sightline.media.pillow import silence_warnings
from sightline.types import PDF, MediaRef

_NICENESS = 10  # whoever serves tokens goes first


def main() -> None:
    channel = socket.socket(fileno=os.dup(0))
    die_with_parent()  # also while a decoder keeps Python's lock
    os.nice(_NICENESS)
    _be_the_first_to_go()
    silence_warnings()
    tasks: queue.SimpleQueue[tuple[DecodeTask, bytes, int]] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(channel, tasks), daemon=True).start()
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the engine is gone, and so are we
        send_reply(channel, Started())
        while True:
            task = tasks.get()
            send_reply(channel, Begun())
            send_reply(channel, _answer(*task))


def _listen(channel: socket.socket, tasks: "queue.SimpleQueue[tuple[DecodeTask, bytes, int]]") -> None:
    """Takes tasks in while one is decoded, so that the end of the socket is noticed at once."""
    with contextlib.suppress(Closed, OSError):
        while True:
            tasks.put(receive_task(channel))
    os._exit(0)


def _be_the_first_to_go() -> None:
    """When the machine runs out of memory, Linux ends this process before the engine."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")


def _answer(task: DecodeTask, data: bytes, descriptor: int) -> DecodeReply:
    limit_more_memory(task.memory_bytes)
    began = time.perf_counter()
    try:
        _decode(task, data, as_array(descriptor, task.shape))
    except (HostMemoryError, MemoryError):
        return _short_of_memory(task)
    except MediaError as error:
        return Failed(str(error))
    except OSError as error:
        if error.errno != errno.ENOMEM:
            raise
        return _short_of_memory(task)
    finally:
        os.close(descriptor)
    return Decoded(time.perf_counter() - began)


def _short_of_memory(task: DecodeTask) -> Failed:
    """If what was counted for the item can be had once our own limit is gone, it is the limit that ended it."""
    subject = f"{task.kind.capitalize()} {task.source}"
    no_memory_limit()
    if is_short_of(task.memory_bytes):
        return Failed(str(not_enough_memory(subject)), is_short_of_memory=True)
    return Failed(f"{subject} cannot be decoded: it takes more memory than its header explains.")


def _decode(task: DecodeTask, data: bytes, frames: NDArray[np.uint8]) -> None:
    """Fills `frames`, [frames, height, width, 3]."""
    header = task.image or task.video
    assert header is not None
    ref = MediaRef(task.kind, data, b"", header, task.source)
    _, height, width, _ = task.shape
    if task.image is not None and task.image.format == PDF:
        page = render_page(data, task.source, task.image.page, header.width, header.height)
        frames[0] = _resized(page, height, width) if task.resize else page
        return
    if task.kind == "image":
        frames[0] = decode_image_resized(ref, height, width) if task.resize else decode_image(ref)
        return
    for index, frame in enumerate(video_frames(ref, task.frame_indices)):
        frames[index] = _resized(frame, height, width) if task.resize else frame


def _resized(frame: NDArray[np.uint8], height: int, width: int) -> NDArray[np.uint8]:
    """As ops/pixels.py does it, bit for bit: that follows the Pillow that is installed."""
    return np.asarray(Image.fromarray(frame).resize((width, height), Image.Resampling.BICUBIC))


if __name__ == "__main__":
    main()
