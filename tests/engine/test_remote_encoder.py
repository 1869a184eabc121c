"""An engine whose images another server encodes: the same answers, whatever that one does meanwhile."""

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from engine.fake_encoder import FakeEncoder, asking, rows_of, until
from engine.harness import Driver, driver, loaded, plain_answer, request_of, small_picture
from media.pictures import encoded
from sightline.cache.keys import embedding_key
from sightline.encoder.decoding.pixels import PixelState
from sightline.engine.executor import local_worker
from sightline.engine.remote import client
from sightline.engine.remote.client import RemoteEncoder
from sightline.engine.remote.wire import PROTOCOL, Identity, RowsHead, pack
from sightline.errors import EncoderAwayError, MediaError
from sightline.media.decode import decode_image
from sightline.types import MediaItem, Request
from sightline.worker.step_input import EncodeItem


@pytest.fixture
def folder(tiny_checkpoints: dict[str, Path]) -> Path:
    return tiny_checkpoints["qwen3-vl"]


class TowerOf(FakeEncoder):
    """It encodes with the tower of the model that the harness has loaded."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._llm, self._one_at_a_time = loaded(folder), threading.Lock()
        width = self._llm.spec.vision.embedding_width
        self.identity = Identity(protocol=PROTOCOL, tower="t", processor="p", dtype="float32", width=width)
        self.decoder = "cpu"  # that it says it has
        self.answer = self.encode

    def encode(self, asked: MediaItem, data: bytes) -> tuple[int, bytes]:
        item = replace(asked, ref=replace(asked.ref, data=data))
        given = EncodeItem(b"", np.empty(0, np.int64), item.without_bytes(), decode_image(item.ref)[None])
        with self._one_at_a_time:
            rows = local_worker(self._llm.engine.executor).encodes.embed(given)
        assert rows is not None
        head = RowsHead(item.ref.digest, "float32", (rows.shape[0], rows.shape[1]), self.decoder, 0.0)
        return 200, pack(head) + rows.flatten().view(torch.uint8).numpy().tobytes()


@pytest.fixture
def fake(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TowerOf]:
    monkeypatch.setattr(client, "RETRY_S", 0.05)
    made = TowerOf(folder)
    yield made
    made.close()


@pytest.fixture
def run(folder: Path) -> Driver:
    return driver(folder, threads=True)


@contextlib.contextmanager
def elsewhere(run: Driver, fake: TowerOf, **settings: Any) -> Iterator[RemoteEncoder]:
    """The engine with the fake as its encoder, until the end of the block."""
    assert isinstance(fake.identity, Identity)
    with asking(fake, own=fake.identity, **settings) as remote:
        remote.on_news = run.engine.encoder.wake
        run.engine.encoder.use(remote)
        yield remote
        run.engine.check_integrity()


def pictures(folder: Path, *seeds: int) -> Request:
    """Of files: raw pixels stay here."""
    return request_of(folder, *(encoded(small_picture(seed), "PNG") for seed in seeds), "What is it?")


def test_embeddings_from_elsewhere_give_the_same_answer(folder: Path, run: Driver, fake: TowerOf) -> None:
    """Images that are known are not asked for again, and the tower here has nothing to do."""
    requests = [pictures(folder, 60, 61), pictures(folder, 62), pictures(folder, 60), request_of(folder, "No picture.")]
    with elsewhere(run, fake) as remote:
        ids = [run.add(request) for request in requests]
        run.run()
        for number, request in zip(ids, requests, strict=True):
            assert run.tokens(number) == plain_answer(folder, request)
        assert run.engine.counts.encoded == 0 and remote.counts.encoded == 3 == len(fake.asked)
        assert run.completions[ids[0], 0].encoded_items == 2 and run.completions[ids[0], 0].timings["encode"] > 0
        again = run.add(pictures(folder, 62, 61))
        run.run()
        assert run.tokens(again) == plain_answer(folder, pictures(folder, 62, 61)) and len(fake.asked) == 3


def test_nobody_waits_for_the_other_server(folder: Path, run: Driver, fake: TowerOf) -> None:
    """Who decodes goes on, and who needs no image begins, while one waits for its embeddings."""
    released = threading.Event()
    fake.answer = lambda asked, data: released.wait(20) and fake.encode(asked, data)
    with elsewhere(run, fake, encoder_timeout_s=30.0):
        slow = run.add(pictures(folder, 63))
        text = run.add(request_of(folder, "No picture."), tokens=20)
        run.run(until=lambda: (text, 0) in run.completions)
        assert (slow, 0) not in run.completions and not released.is_set()
        released.set()
        run.run()
        assert run.tokens(slow) == plain_answer(folder, pictures(folder, 63))


def test_a_request_that_ends_ends_what_it_asked_for(folder: Path, run: Driver, fake: TowerOf) -> None:
    fake.answer = fake.hold
    with elsewhere(run, fake):
        number = run.add(pictures(folder, 64))
        run.run(until=fake.held.is_set)
        run.engine.abort(number)
        until(lambda: fake.lost, "the connection to be closed")
        assert not run.engine.has_work


@pytest.mark.parametrize("fallback", ["local", "refuse"])
def test_when_the_other_goes(folder: Path, run: Driver, fake: TowerOf, fallback: str) -> None:
    """Its images are encoded here, or their requests fail and nobody else's; when it is back it is asked again."""
    identity = fake.identity
    with elsewhere(run, fake, encoder_fallback=fallback) as remote:
        before = run.add(pictures(folder, 65))
        run.run()
        fake.identity, fake.answer = 503, lambda asked, data: lambda handler: None
        during = [run.add(pictures(folder, seed)) for seed in (66, 67, 65)]
        run.run()
        after = run.add(pictures(folder, 68))
        run.run()
        assert run.tokens(during[2]) == plain_answer(folder, pictures(folder, 65)), "it is known"
        for number, seed in ((during[0], 66), (during[1], 67), (after, 68)):
            if fallback == "local":
                assert run.tokens(number) == plain_answer(folder, pictures(folder, seed))
            else:
                assert isinstance(run.errors[number], EncoderAwayError)
        assert run.engine.counts.encoded == (3 if fallback == "local" else 0)
        fake.identity, fake.answer = identity, fake.encode
        until(lambda: remote.up, "the other to be back")
        asked = len(fake.asked)
        back = run.add(pictures(folder, 69))
        run.run()
        assert run.tokens(back) == plain_answer(folder, pictures(folder, 69)) and len(fake.asked) == asked + 1
        assert run.tokens(before)


@pytest.mark.parametrize("known_before", [True, False])
def test_embeddings_are_known_by_the_decoder_that_really_made_the_pixels(
    folder: Path, run: Driver, fake: TowerOf, known_before: bool
) -> None:
    """Red when embeddings of the other's decoder are found under the name of the one here, or a rename loses a request."""
    fake.decoder = "another"
    request = pictures(folder, 70)
    (item,) = request.items
    there, here = (embedding_key(item.key, name) for name in ("another", "cpu"))
    if known_before:
        number = run.add(request)
        run.run()
        assert run.engine.schedule.embeddings.lookup(here) is not None and not fake.asked
    with elsewhere(run, fake):
        second = run.add(pictures(folder, 71, 70))
        run.run()
        cache = run.engine.schedule.embeddings
        assert run.tokens(second) == plain_answer(folder, pictures(folder, 71, 70))
        assert cache.lookup(embedding_key(pictures(folder, 71).items[0].key, "another")) is not None
        if not known_before:
            assert cache.lookup(there) is not None and cache.lookup(here) is None
        else:
            assert run.tokens(number) == plain_answer(folder, request)


@pytest.mark.parametrize("fallback", ["local", "refuse"])
def test_a_file_that_the_other_refuses(folder: Path, run: Driver, fake: TowerOf, fallback: str) -> None:
    """Its limits may be narrower than ours, so it is tried here, or fails its request and no other."""
    broken, fine = pictures(folder, 72), pictures(folder, 73)
    bad = broken.items[0].ref.digest

    def answer(asked: MediaItem, data: bytes) -> Any:
        if asked.ref.digest == bad:
            return 413, b'{"error": {"message": "The body is too large."}}'
        return fake.encode(asked, data)

    fake.answer = answer
    with elsewhere(run, fake, encoder_fallback=fallback):
        first, second = run.add(broken), run.add(fine)
        run.run()
        if fallback == "local":
            assert run.tokens(first) == plain_answer(folder, broken)
        else:
            assert isinstance(run.errors[first], MediaError) and "too large" in str(run.errors[first])
        assert run.tokens(second) == plain_answer(folder, fine)


def test_a_wrong_answer_is_made_good_here(folder: Path, run: Driver, fake: TowerOf) -> None:
    fake.answer = lambda asked, data: (200, rows_of(asked)[1][:-3])
    with elsewhere(run, fake) as remote:
        number = run.add(pictures(folder, 74))
        run.run()
        assert run.tokens(number) == plain_answer(folder, pictures(folder, 74))
        assert remote.up and remote.counts.away == 1 and run.engine.counts.encoded == 1
        assert remote.state(pictures(folder, 74).items[0]) is PixelState.PENDING, "it is forgotten"
