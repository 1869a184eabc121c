"""What is encoded on the side stream takes its time on a CPU too: embeddings are there, and are said to be, a while later."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from sightline.worker.arena import EmbeddingArena
from sightline.worker.encodes import Encodes


class Later:
    """Stands for the event behind an encode on another stream: some questions later the embeddings are there."""

    def __init__(self, arena: EmbeddingArena, slots: Sequence[NDArray[np.int64]], questions: int) -> None:
        self._questions, self._arena, self._slots = questions, arena, slots
        self._rows: list[torch.Tensor] | None = [arena.gather(some).clone() for some in slots]
        for some in slots:
            arena.rows[some] = float("nan")

    def write(self) -> None:
        """The device is done with it, whether somebody knows or not."""
        if self._rows is not None:
            for slots, rows in zip(self._slots, self._rows, strict=True):
                self._arena.rows[slots] = rows
            self._rows = None

    def synchronize(self) -> None:
        self._questions = 0
        self.write()

    def query(self) -> bool:
        self._questions -= 1
        if self._questions <= 0:
            self.write()
        return self._questions <= 0


def encode_later(encodes: Encodes, monkeypatch: pytest.MonkeyPatch, questions: Callable[[], int]) -> None:
    """Makes a worker do so; `questions` says how many it takes of each encode. A GPU is late by itself."""
    if encodes._device.type != "cpu":
        return
    in_line, embed = encodes._encode_in_line, encodes.embed

    def note_end(encode: Any) -> None:
        slots = [item.slots for item in encode.given.items if item.key not in encode.failed]
        encode.done = Later(encodes._arena, slots, questions())

    def after_all(run: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def started(given: Any) -> Any:  # the device would wait for the side stream: both use the tower's buffers
            for begun in encodes._asynchronous:
                if begun.done is not None:
                    begun.done.write()
            return run(given)

        return started

    monkeypatch.setattr(encodes, "_note_end", note_end)
    monkeypatch.setattr(encodes, "_encode_in_line", after_all(in_line))
    monkeypatch.setattr(encodes, "embed", after_all(embed))
