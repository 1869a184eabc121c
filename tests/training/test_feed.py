"""What processes draw arrives in the rings whole: pixels beside the numbers of the same sample. Red when slots are mixed up."""

import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "training"))

import feed
from batches import IGNORED, Encoder, batches
from sightline.models.locate import EMBEDDED

SKILLS = {"sign": 1.0, "video": 0.3}
CPU = torch.device("cpu")


def test_rings_hold_what_was_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "BLOCK", 4)
    monkeypatch.setattr(feed, "RING_BYTES", 600_000)
    source = feed.Feed(EMBEDDED, 2, 0, SKILLS, 1.0)
    try:
        ends = time.monotonic() + 60
        while sum(ring.received for ring in source.rings.values()) < 120 and time.monotonic() < ends:
            source.take_in(CPU, wait=True)
    finally:
        source.close()
    assert any(ring.received > ring.capacity for ring in source.rings.values())  # the oldest made room
    known = {}  # what each of the two processes must have drawn, by pixels
    for place in range(2):
        made = batches(EMBEDDED, "train", 4, place, 2, 1.0, SKILLS)
        for _ in range(60):
            batch = next(made)
            at, wanted = feed.answer_places(batch.labels)
            for row, pixels in enumerate(batch.pixels):
                known[pixels.tobytes()] = batch.token_ids[row], at[row], wanted[row]
    end = Encoder(EMBEDDED).end
    found = 0
    for ring in source.rings.values():
        drawn = ring.draw(16)
        for row, pixels in enumerate(drawn.pixels.numpy()):
            if (expected := known.get(pixels.tobytes())) is None:
                continue  # drawn later than what is compared here
            found += 1
            for name, numbers in zip(("ids", "at", "wanted"), expected, strict=True):
                assert np.array_equal(getattr(drawn, name)[row].numpy(), numbers)
        answers = drawn.wanted[drawn.wanted != IGNORED]
        assert (answers == end).sum() >= 16
    assert found >= 16
