"""The socket to an engine process, on the event loop: a message is handed over in the turn of the loop in which it comes.

`zmq.asyncio` would take a future and a turn of a task for each message, of which there is one per step of the engine.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import zmq

log = logging.getLogger("sightline.engine")


class EngineSocket:
    """Bound to `address`; `on_message` is called with each message that comes, and with the bytes of its further frames, if it
    has any, as they lie in memory."""

    def __init__(self, address: str, on_message: Callable[..., None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_message = on_message
        self._look: asyncio.Handle | None = None
        self._unsent: deque[Sequence[Any]] = deque()
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.PAIR)
        for option in (zmq.SNDHWM, zmq.RCVHWM, zmq.LINGER):
            self._socket.setsockopt(option, 0)
        self._socket.bind(address)
        self._file = self._socket.fileno()
        self._loop.add_reader(self._file, self._changed)

    def send(self, frames: Sequence[Any]) -> None:
        self._unsent.append(frames)
        self._write()
        # The file tells of a change once, and sending may have taken that in.
        if self._look is None:
            self._look = self._loop.call_soon(self._changed)

    def _changed(self) -> None:
        self._look = None
        self._write()
        self._read()

    def _write(self) -> None:
        """There is no limit on messages on their way, so those that cannot be sent wait for a process to connect."""
        while self._unsent:
            try:
                self._socket.send_multipart(self._unsent[0], zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            self._unsent.popleft()

    def _read(self) -> None:
        """Takes all messages that are there: the file is silent about those that are left."""
        while True:
            try:
                message = self._socket.recv(zmq.NOBLOCK)
                more = self._socket.recv_multipart(zmq.NOBLOCK, copy=False) if self._socket.rcvmore else ()
            except zmq.Again:
                return
            except zmq.ZMQError as error:
                if not self._socket.closed:
                    log.error("Reading from the engine failed: %s.", error)
                return
            try:
                self._on_message(message, *(frame.buffer for frame in more))
            except Exception:  # a mistake of ours must not end the hearing of all others
                log.exception("A message of the engine could not be taken in.")

    def close(self) -> None:
        if self._look is not None:
            self._look.cancel()
            self._look = None
        self._loop.remove_reader(self._file)
        self._socket.close()
        self._context.term()
