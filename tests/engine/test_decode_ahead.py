"""Images are decoded beside the steps of others. Red when one holds up who does not need it, is decoded twice, for nothing, or
after nobody wants it any more."""

import io
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.harness import Driver, driver, plain_answer, request_of, small_picture
from sightline.encoder.decoding import decoder as decoding
from sightline.errors import MediaError
from sightline.media.decoder_errors import DecodeCancelled
from sightline.types import MediaRef

PATIENCE_S = 60.0


@pytest.fixture
def folder(tiny_checkpoints: dict[str, Path]) -> Path:
    return tiny_checkpoints["qwen3-vl"]


def png(seed: int, width: int = 96, height: int = 64) -> bytes:
    """A file: raw pixels take no memory of their own."""
    data = io.BytesIO()
    small_picture(seed, width, height).save(data, "PNG")
    return data.getvalue()


class HeldDecodes:
    """Decodes wait here until the test lets them go on; of which files, and how many were cancelled meanwhile."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.held: set[bytes] | None = None  # digests; None: all
        self.go_on, self.begun, self.cancelled = threading.Event(), threading.Semaphore(0), threading.Semaphore(0)
        decode = decoding.decode_image

        def slowly(ref: MediaRef, cancelled: Any) -> Any:
            if self.held is None or ref.digest in self.held:
                self.begun.release()
                while not self.go_on.wait(0.005):
                    if cancelled():
                        self.cancelled.release()
                        raise DecodeCancelled
            return decode(ref, cancelled)

        monkeypatch.setattr(decoding, "decode_image", slowly)


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[HeldDecodes]:
    made = HeldDecodes(monkeypatch)
    yield made
    made.go_on.set()


def talking(run: Driver, folder: Path, tokens: int = 40) -> int:
    number = run.add(request_of(folder, "Go on and on."), tokens=tokens)
    for _ in range(4):
        run.step()
    return number


@pytest.mark.parametrize("async_encode", [False, True])
def test_a_decode_that_lasts_holds_up_its_own_request_alone(folder: Path, held: HeldDecodes, async_encode: bool) -> None:
    """While it is held open one who decodes and others who come later run to their end, an image of their own included."""
    run = driver(folder, threads=True, async_encode=async_encode)
    first = talking(run, folder)
    slow, quick = request_of(folder, small_picture(51), " Slow."), request_of(folder, "See ", small_picture(52), "?")
    held.held = {slow.items[0].ref.digest}
    second = run.add(slow, tokens=4)
    third = run.add(request_of(folder, "Only words."), tokens=4)
    fourth = run.add(quick, tokens=4)
    run.run(until=lambda: len(run.completions) == 3)
    assert {key[0] for key in run.completions} == {first, third, fourth}
    assert held.begun.acquire(timeout=PATIENCE_S) and run.engine.counts.encoded == 1
    held.go_on.set()
    run.run()
    assert run.tokens(second) == plain_answer(folder, slow, 4) and run.tokens(fourth) == plain_answer(folder, quick, 4)
    assert run.engine.encoder._decoder.decoded == 2


def test_who_waits_for_pixels_keeps_no_place_from_others(folder: Path, held: HeldDecodes) -> None:
    """One place to run, and one who has begun but waits for its second image. Red when nobody else is let in meanwhile."""
    run = driver(folder, threads=True, max_num_seqs=1)
    pictures = [small_picture(53), small_picture(54)]
    slow = request_of(folder, pictures[0], " and ", pictures[1], " Slow.")
    held.held = {slow.items[1].ref.digest}
    first = run.add(slow, tokens=3)
    run.run(until=lambda: any(s.stalled_on == 1 for s in run.engine.schedule.running))
    words = [run.add(request_of(folder, f"Words, {number}."), tokens=3) for number in range(3)]
    run.run(until=lambda: len(run.completions) == 3)
    assert {key[0] for key in run.completions} == set(words)
    held.go_on.set()
    run.run()
    assert run.tokens(first) == plain_answer(folder, slow, 3) and run.engine.counts.encoded == 2


def test_who_leaves_takes_its_decode_along(folder: Path, held: HeldDecodes) -> None:
    """Red when a decode goes on, or its memory stays taken, after the only request that needed it is gone; or when it ends
    although another needs it."""
    run = driver(folder, threads=True)
    decoder = run.engine.encoder._decoder
    request = request_of(folder, png(55), "Who?")
    gone, also, stays = (run.add(request, tokens=2, cache_salt=salt) for salt in "abc")
    run.step()
    assert held.begun.acquire(timeout=PATIENCE_S)
    run.engine.abort(gone)
    run.engine.abort(also)
    assert not held.cancelled.acquire(timeout=0.05) and decoder.bytes_in_flight > 0
    run.engine.abort(stays)
    assert held.cancelled.acquire(timeout=PATIENCE_S)
    while decoder.bytes_in_flight:
        pass
    assert not run.engine.has_work and run.engine.counts.encoded == 0
    held.go_on.set()
    again = run.add(request, tokens=2)
    run.run()
    assert run.tokens(again) == plain_answer(folder, request, 2)


def test_each_image_is_decoded_once_and_what_is_known_not_at_all(folder: Path) -> None:
    run = driver(folder, threads=True, max_patches_per_step=1, lookahead_patches=0)
    pictures = [small_picture(number) for number in range(60, 65)]
    requests = [request_of(folder, picture, "What?") for picture in pictures]
    numbers = [run.add(request, tokens=4) for request in requests]
    run.run()
    assert [run.tokens(number) for number in numbers] == [plain_answer(folder, request, 4) for request in requests]
    decoder = run.engine.encoder._decoder
    assert decoder.decoded == run.engine.counts.decoded == 5 and decoder.bytes_in_flight == 0
    both = run.add(request_of(folder, pictures[3], small_picture(65), "And now?"), tokens=2)
    run.run()
    assert decoder.decoded == 6 and run.completions[both, 0].encoded_items == 1


def test_memory_of_pixels_is_bounded(folder: Path, held: HeldDecodes) -> None:
    """A hundred pictures at once. Red when more pixels are there, or on their way, than the setting allows."""
    run = driver(folder, threads=True, decode_memory_mb=1)
    decoder = run.engine.encoder._decoder
    decoder._memory_bytes = most = 1_000_000  # a fourth is more than one of the pictures takes while it is decoded
    decoder._small.share, decoder._small.limit = most // 4, most
    held.go_on.set()
    requests = [request_of(folder, f"{number} ", png(number % 20, 120, 100)) for number in range(100)]
    numbers = [run.add(request, tokens=1) for request in requests]
    peak = 0
    while run.engine.has_work:
        run.step()
        peak = max(peak, decoder.bytes_in_flight)
    assert most // 2 < peak <= most
    assert all((number, 0) in run.completions for number in numbers)


def test_a_broken_file_fails_who_needs_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torn = request_of(folder, small_picture(71), "Torn.")
    decode = decoding.decode_image

    def fail(ref: MediaRef, cancelled: Any) -> Any:
        if ref.digest == torn.items[0].ref.digest:
            raise MediaError("torn")
        return decode(ref, cancelled)

    monkeypatch.setattr(decoding, "decode_image", fail)
    run = driver(folder, threads=True)
    fine = request_of(folder, small_picture(72), "Fine.")
    numbers = [run.add(request, tokens=3) for request in (torn, fine)]
    run.run()
    assert "torn" in str(run.errors[numbers[0]]) and run.tokens(numbers[1]) == plain_answer(folder, fine, 3)
