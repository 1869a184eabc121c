"""What the decode service starts, in which order and within which memory, with decodes that the test holds open."""

import threading

import numpy as np
import pytest

from encoder.decoding_items import MEGABYTE, PATIENCE_S, HeldDecodes, clip, opened, still, wait_until_decoded
from sightline.encoder.decoding import decoder as decoding
from sightline.encoder.decoding.decoder import MediaDecoder
from sightline.encoder.decoding.job import Job, is_cheap
from sightline.encoder.decoding.pixels import Pixels, PixelState
from sightline.errors import MediaError
from sightline.types import MediaItem, MediaRef

GIGABYTE = 1000 * MEGABYTE
PENDING, READY, FAILED = PixelState


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> HeldDecodes:
    made = HeldDecodes()
    monkeypatch.setattr(decoding, "_decode_here", made)
    monkeypatch.setattr(decoding, "_decode_in", lambda helper, job: made(job))
    return made


# Red if an item that is wanted later is started first, more run than there are threads, or the next one waits for the engine.
def test_items_start_in_the_order_they_are_wanted(held: HeldDecodes) -> None:
    a, b, c, d = items = [still(name) for name in "abcd"]
    with opened(2, GIGABYTE, held) as decoder:
        decoder.want(items)
        with held.changed:
            assert held.changed.wait_for(lambda: sorted(held.started) == ["a", "b"], PATIENCE_S)
        decoder.want([b, a, d, c])
        held.end("b")
        assert wait_until_decoded(decoder, b) == [READY]
        with held.changed:
            assert held.changed.wait_for(lambda: held.started[2:] == ["d"], PATIENCE_S)
        assert [decoder.state(item) for item in (a, c, d)] == [PENDING] * 3
        assert decoder.decoded == 3


# Red if what is cheap waits for what is not: for its decoder or for its memory.
def test_small_items_pass_large_ones(held: HeldDecodes) -> None:
    large = [still(f"large {number}", 100) for number in range(4)]  # 700 MB each
    small = [still(f"small {number}", 10) for number in range(3)]
    assert not is_cheap(large[0]) and is_cheap(small[0])
    with opened(4, GIGABYTE, held) as decoder:
        decoder.want([*large, *small])
        held.end(*(item.ref.source for item in small))
        assert wait_until_decoded(decoder, *small) == [READY] * 3
        assert [name for name in held.started if name.startswith("large")] == ["large 0"]


def test_what_counts_as_cheap() -> None:
    assert is_cheap(still("photo", 48)) and not is_cheap(still("photo", 48.1))
    assert is_cheap(still("progressive", 4, scans=10)) and not is_cheap(still("many scans", 1, scans=195))
    assert is_cheap(clip("short", 32, 95)) and not is_cheap(clip("long", 32, 100))  # 1 megapixel a frame
    assert is_cheap(clip("few", 80, 90)) and not is_cheap(clip("many", 90, 90))  # 3 MB a frame


def watched(monkeypatch: pytest.MonkeyPatch, decoder: MediaDecoder) -> list[int]:
    """What is in flight at each change of it."""
    seen = []
    account = decoder._account

    def told(job: Job, count: int) -> None:
        account(job, count)
        seen.append(decoder.bytes_in_flight)

    monkeypatch.setattr(decoder, "_account", told)
    return seen


# Red if decodes in progress or pixels that nobody took are not counted, or the large ones leave nothing for small ones.
def test_a_hundred_large_images_stay_within_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    most = [0]

    def decode(job: Job) -> Pixels:
        return Pixels(np.zeros((1, 1000, 10_000, 3), np.uint8), 0.0)  # 30 MB

    monkeypatch.setattr(decoding, "_decode_in", lambda helper, job: decode(job))
    monkeypatch.setattr(decoding, "_decode_here", decode)
    items = [still(f"{number}", 60 if number % 3 else 20) for number in range(100)]
    with opened(16, GIGABYTE) as decoder:
        seen = watched(monkeypatch, decoder)
        left = list(items)
        while left:
            decoder.want(left)
            ready = [item for item in left if decoder.state(item) is READY]
            if not ready:
                assert decoder.wait(PATIENCE_S), "nothing came"
            for item in ready:  # none of them loses its pixels before its turn
                assert decoder.take(item).frames.nbytes == 30 * MEGABYTE
                left.remove(item)
            most[0] = max(most[0], decoder._large.charged)
        assert max(seen) <= GIGABYTE and max(seen) > 0.5 * GIGABYTE
        assert 0 < most[0] <= 0.75 * GIGABYTE
        assert decoder.bytes_in_flight == 0


# Red if an item that is larger than its share never runs, or runs beside others of its lane.
def test_an_item_larger_than_the_budget_runs_alone(held: HeldDecodes) -> None:
    first, huge, last = still("first", 60), still("huge", 200), still("last", 60)  # 420, 1400 and 420 MB
    with opened(16, GIGABYTE, held) as decoder:
        decoder.want([first, huge, last])
        held.wait_for("first")
        held.end("first")
        assert wait_until_decoded(decoder, first) == [READY]
        decoder.take(first)
        decoder.want([huge, last])
        held.wait_for("first", "huge")
        assert decoder.bytes_in_flight == pytest.approx(1400 * MEGABYTE, rel=0.01)
        held.end("huge")
        wait_until_decoded(decoder, huge)
        decoder.take(huge)
        held.wait_for("first", "huge", "last")


# Red if pixels of items that come later keep the most urgent one from starting: who takes them in order would wait for ever.
def test_ready_pixels_behind_make_room_for_the_most_urgent(held: HeldDecodes, monkeypatch: pytest.MonkeyPatch) -> None:
    def large_result(job: Job) -> Pixels:
        held(job)
        return Pixels(np.zeros((1, 1000, 20_000, 3), np.uint8), 0.0)

    monkeypatch.setattr(decoding, "_decode_here", large_result)
    others = [still(f"{number}", 20) for number in range(8)]  # 140 MB each while it is decoded, then 60
    urgent = still("urgent", 20)
    with opened(1, 600 * MEGABYTE, held) as decoder:
        decoder.want(others)
        held.end(*(item.ref.source for item in others))
        wait_until_decoded(decoder, *others)
        decoder.want([urgent, *others])
        with held.changed:
            assert held.changed.wait_for(lambda: held.started[8:] == ["urgent"], PATIENCE_S)
        assert [decoder.state(item) for item in others] == [READY] * 7 + [PENDING]
        held.end("urgent")
        left = [urgent, *others]
        while left:
            assert wait_until_decoded(decoder, left[0]) == [READY]
            decoder.take(left.pop(0))
            decoder.want(left)
    assert held.started[8:] == ["urgent", "7"]


# Red if an item that is not wanted any more is decoded, is told of, or keeps its memory.
def test_what_is_not_wanted_any_more_is_cancelled(held: HeldDecodes) -> None:
    running, waiting, ready = still("running"), still("waiting"), still("ready")
    with opened(1, GIGABYTE, held) as decoder:
        decoder.want([ready, running, waiting])
        held.end("ready")
        wait_until_decoded(decoder, ready)
        held.wait_for("ready", "running")
        decoder.want([running, waiting])
        assert decoder.state(ready) is PENDING
        assert decoder.bytes_in_flight == 7 * MEGABYTE
        decoder.want([])
        assert decoder.bytes_in_flight == 7 * MEGABYTE  # until its thread has ended
        held.end("running", fault=MediaError("nobody is told"))
        decoder.close()
        assert decoder.bytes_in_flight == 0
        assert (held.started, held.cancelled) == (["ready", "running"], ["running"])
        assert decoder.failed() == []


# Red if an item that is wanted again gets the result of the decode that was cancelled.
def test_an_item_can_be_wanted_again(held: HeldDecodes) -> None:
    item = still("again")
    with opened(1, GIGABYTE, held) as decoder:
        decoder.want([item])
        held.wait_for("again")
        decoder.want([])
        decoder.want([item])
        held.end("again")
        assert wait_until_decoded(decoder, item) == [READY]
        assert (held.started, held.cancelled) == (["again", "again"], ["again"])


# Red if an error is lost, told twice, or a mistake of ours leaves somebody waiting.
def test_failures(held: HeldDecodes) -> None:
    broken, buggy, good = still("broken"), still("buggy"), still("good")
    with opened(1, GIGABYTE, held) as decoder:
        decoder.want([broken, buggy, good])
        held.end("broken", fault=MediaError("Image broken cannot be read."))
        held.end("buggy", fault=ZeroDivisionError("oh"))
        held.end("good")
        assert wait_until_decoded(decoder, broken, buggy, good) == [FAILED, FAILED, READY]
        told = {item.ref.source: str(error) for item, error in decoder.failed()}
        assert told == {
            "broken": "Image broken cannot be read.",
            "buggy": "Image buggy cannot be decoded: ZeroDivisionError('oh').",
        }
        assert decoder.failed() == []
        decoder.want([broken, good])
        with pytest.raises(MediaError, match="Image broken cannot be read"):
            decoder.take(broken)
        assert decoder.state(broken) is PENDING
        assert held.started.count("broken") == 1
        assert decoder.take(good).frames.shape == (1, 10, 10, 3)


# Red if items that the GPU decodes, or that came without bytes, are decoded here.
def test_items_without_bytes_are_left_alone(held: HeldDecodes) -> None:
    """Red if what is known by its digest alone is given to a decoder, or videos are not counted apart."""
    own = still("own")
    missing = MediaItem(MediaRef("image", b"", b"m", own.ref.header, "missing"), b"m", own.views, own.grids, (), (), 1)
    decoder = MediaDecoder(2, GIGABYTE)
    held.end_all()
    decoder.want([missing, own, clip("clip", 4, 10)])
    wait_until_decoded(decoder, own, clip("clip", 4, 10))
    decoder.close()
    assert sorted(held.started) == ["clip", "own"]
    assert (decoder.decoded, decoder.videos_decoded) == (2, 1)


# Red if news that came before somebody waits are slept over, or old news end a wait for ever after.
def test_waiting(held: HeldDecodes) -> None:
    a, b = still("a"), still("b")
    with opened(2, GIGABYTE, held) as decoder:
        assert not decoder.wait(0)
        decoder.want([a, b])
        held.end("a")
        wait_until_decoded(decoder, a)
        decoder.failed()  # waits for the thread that sets a's state and then tells
        decoder.wait(0)
        assert not decoder.wait(0)
        threading.Timer(0.05, held.end, ["b"]).start()
        assert decoder.wait(PATIENCE_S)
        assert decoder.state(b) is READY
