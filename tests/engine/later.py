"""What is encoded aside takes its time on a CPU too: the rows are there, and are said to be, some questions later."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from sightline.cache.embeddings import EmbeddingEntry
from sightline.run.runner import Runner


class Later:
    """Stands for the event behind an encode on another stream: some questions later the rows are there."""

    def __init__(self, runner: Runner, entries: list[EmbeddingEntry], questions: int) -> None:
        self._questions, self._arena = questions, runner.arena
        self._slots = [runner.embeddings.row_slots(entry, 0, entry.rows) for entry in entries]
        self._rows: list[torch.Tensor] | None = [self._arena.gather(slots).clone() for slots in self._slots]
        for slots in self._slots:
            self._arena.rows[slots] = float("nan")

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


def encode_later(runner: Runner, monkeypatch: pytest.MonkeyPatch, questions: Callable[[], int]) -> None:
    """Makes a runner do so; `questions` says how many it takes of each encode. A GPU is late by itself."""
    if runner.device.type != "cpu":
        return
    encode = runner.encode

    def started(encodes: Any, aside: bool = False) -> Any:
        if not aside:  # the device would wait for what is aside: both use the tower's buffers
            for begun in runner._aside:
                begun.done.write()  # type: ignore[union-attr]
            return runner._encode(encodes)
        result = encode(encodes, aside)
        good = [encode.entry for encode in encodes if encode.entry.key not in result.failures]
        runner._aside[-1] = replace(runner._aside[-1], done=Later(runner, good, questions()))
        return result

    monkeypatch.setattr(runner, "encode", started)
