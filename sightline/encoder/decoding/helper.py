"""A helper process as the engine sees it: started when it is first needed, and again when it died."""

import os
import signal
import socket
import subprocess
import sys

import msgspec
import numpy as np

from sightline.encoder.decoding import shared_memory
from sightline.encoder.decoding.cancellation import Cancellation
from sightline.encoder.decoding.messages import Begun, Closed, Decoded, DecodeTask, Failed, Started, receive_reply, send_task
from sightline.encoder.decoding.pixels import Pixels, is_shrunk, result_shape
from sightline.errors import HostMemoryError, MediaError
from sightline.media.decoder_errors import DecodeCancelled
from sightline.types import ImageHeader, MediaItem, VideoHeader

COMMAND = (sys.executable, "-m", "sightline.encoder.decoding.process")
_SPARE_BYTES = 1 << 29  # that a decoder may take beyond what is counted for it: its tables, threads and scratch
_CODEC_BYTES_PER_PIXEL = 200  # of a video's frame: ffmpeg keeps dozens for its threads and for reference
_END_PATIENCE_S = 5.0


class _DiedIdleError(Exception):
    """The process died while it had nothing to do, and this was not seen before it got an item."""


class Helper:
    """Belongs to one thread; only a cancellation comes from another."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None
        self._has_started = False

    def decode(self, item: MediaItem, memory_bytes: int, cancellation: Cancellation, limit_s: float | None = None) -> Pixels:
        """Raises MediaError if the item cannot be decoded, takes longer than `limit_s` or the process dies, DecodeCancelled if
        it was killed for that."""
        try:
            return self._decode(item, memory_bytes, cancellation, limit_s)
        except _DiedIdleError:  # before it began: no fault of the item, which a new process decodes
            return self._decode(item, memory_bytes, cancellation, limit_s)

    def _decode(self, item: MediaItem, memory_bytes: int, cancellation: Cancellation, limit_s: float | None) -> Pixels:
        process, channel = self._running()
        task = _task(item, memory_bytes)
        descriptor = shared_memory.create(int(np.prod(task.shape)))
        was_idle, has_begun = self._has_started, False
        try:
            with cancellation.killing(process.kill):
                self._wait_until_started(channel)
                channel.settimeout(limit_s)
                send_task(channel, task, item.ref.data, descriptor)
                assert isinstance(receive_reply(channel), Begun)
                has_begun = True
                reply = receive_reply(channel)
                assert isinstance(reply, Decoded | Failed)
            if cancellation():  # the reply came, but so may have the signal
                self._ended()
                raise DecodeCancelled
            if isinstance(reply, Failed):
                raise (HostMemoryError if reply.is_short_of_memory else MediaError)(reply.sentence)
            return Pixels(shared_memory.as_array(descriptor, task.shape), reply.seconds)
        except (Closed, OSError, msgspec.MsgspecError) as error:
            if isinstance(error, TimeoutError):
                process.kill()
            code = self._ended()
            if cancellation():
                raise DecodeCancelled from error
            if isinstance(error, TimeoutError):
                taken = f"it took longer than the {limit_s:g} s allowed (--max-pdf-seconds)"
                raise MediaError(f"Image {item.ref.source} cannot be decoded: {taken}.") from error
            if was_idle and not has_begun:
                raise _DiedIdleError from error
            raise _death(item, code) from error
        finally:
            os.close(descriptor)

    def close(self) -> None:
        if self._process is not None:
            self._ended()

    def _running(self) -> "tuple[subprocess.Popen[bytes], socket.socket]":
        if self._process is not None and self._process.poll() is not None:  # it died while it had nothing to do
            self._ended()
        if self._process is None or self._channel is None:
            self._channel, theirs = socket.socketpair()
            self._has_started = False
            with theirs:
                # Standard output is not ours; whatever a decoder prints goes to standard error.
                self._process = subprocess.Popen(COMMAND, stdin=theirs.fileno(), stdout=2, env=_environment())
        return self._process, self._channel

    def _wait_until_started(self, channel: socket.socket) -> None:
        """What starting takes on a busy machine is no fault of the item."""
        if not self._has_started:
            channel.settimeout(None)
            assert isinstance(receive_reply(channel), Started)
            self._has_started = True

    def _ended(self) -> int:
        """Sees the process off, which ends by itself when the socket closes; its exit code, negative for a signal."""
        assert self._process is not None and self._channel is not None
        self._channel.close()
        try:
            code = self._process.wait(_END_PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        self._process = self._channel = None
        return code


def _environment() -> dict[str, str]:
    """NumPy's linear algebra, which nobody needs there, starts a thread per processor with memory for each."""
    return {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}


def _task(item: MediaItem, memory_bytes: int) -> DecodeTask:
    ref, header = item.ref, item.ref.header
    codec = _CODEC_BYTES_PER_PIXEL * header.width * header.height if isinstance(header, VideoHeader) else 0
    return DecodeTask(
        kind=ref.kind,
        image=header if isinstance(header, ImageHeader) else None,
        video=header if isinstance(header, VideoHeader) else None,
        source=ref.source,
        data_bytes=len(ref.data),
        frame_indices=item.frame_indices,
        shape=result_shape(item),
        resize=is_shrunk(item),
        memory_bytes=2 * memory_bytes + codec + _SPARE_BYTES,
    )


def _death(item: MediaItem, code: int) -> MediaError:
    subject = f"{item.ref.kind.capitalize()} {item.ref.source}"
    if code == -signal.SIGKILL:  # not by us: the system, which ends helpers first when memory runs out
        return HostMemoryError(f"{subject} cannot be decoded now: the process that decoded it was killed.")
    how = f"was killed by signal {-code} ({signal.strsignal(-code)})" if code < 0 else f"ended with code {code}"
    return MediaError(f"{subject} cannot be decoded: the process that decoded it {how}.")
