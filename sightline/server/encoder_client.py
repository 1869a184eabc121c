"""The engine process of a server that encodes for others, as its API process sees it."""

import asyncio
import itertools
from typing import Any

import numpy as np

from sightline.engine.messages import Abort, EncodedRows, EncodeFile, FromEngine
from sightline.engine.remote.wire import RowsHead
from sightline.server.engine_client import EngineClient, EngineGone
from sightline.server.errors import failed
from sightline.types import MediaItem
from sightline.wire import to_frames


class EncoderClient(EngineClient):
    def __init__(self, *arguments: Any) -> None:
        """As EngineClient's."""
        super().__init__(*arguments)
        self._asked: dict[int, asyncio.Future[tuple[RowsHead, memoryview]]] = {}
        self._next_number = itertools.count(1)

    async def encode(self, item: MediaItem, data: bytes | memoryview) -> tuple[RowsHead, memoryview]:
        """Embeddings of a file. `item` has no bytes. Cancelling it ends the encode."""
        self.require_ready()
        number = next(self._next_number)
        answer: asyncio.Future[tuple[RowsHead, memoryview]] = asyncio.get_running_loop().create_future()
        self._asked[number] = answer
        self._send_frames(to_frames(EncodeFile(number, item, np.frombuffer(data, np.uint8))))
        try:
            return await answer
        finally:
            if self._asked.pop(number, None) is not None and not answer.done():
                self._send(Abort(number))

    def _take(self, report: FromEngine, *frames: memoryview) -> None:
        if not isinstance(report, EncodedRows):
            super()._take(report, *frames)
            return
        answer = self._asked.get(report.number)
        if answer is None or answer.done():
            return
        if report.failure is not None:
            answer.set_exception(failed(report.failure))
        else:
            assert report.head is not None
            answer.set_result((report.head, frames[0]))

    def _lose_all(self) -> None:
        super()._lose_all()
        for answer in self._asked.values():
            if not answer.done():
                answer.set_exception(EngineGone())
        self._asked.clear()
