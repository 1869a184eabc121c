"""Images encoded beside the steps of those who decode: nobody's tokens wait for the tower, and answers are the same."""

from pathlib import Path

import pytest

from engine.harness import Driver, driver, plain_answer, request_of, sized_driver, small_picture
from engine.later import encode_later
from sightline.errors import MediaError
from sightline.media import decode
from sightline.media.decode import decode_image
from sightline.worker.encodes import Encodes


@pytest.fixture
def folder(tiny_checkpoints: dict[str, Path]) -> Path:
    return tiny_checkpoints["qwen3-vl"]


@pytest.mark.parametrize("overlap", [False, True])
def test_a_step_that_decodes_does_not_compute_what_it_encodes(
    folder: Path, overlap: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Red when a sequence takes rows in the step that encodes them while somebody decodes, or waits although nobody does."""
    run = driver(folder, async_encode=True, overlap=overlap)
    talker = request_of(folder, "Go on and on.")
    first = run.add(talker, tokens=40)
    for _ in range(4):
        run.step()
    picture = request_of(folder, "Look: ", small_picture(31), " What is it?")
    second = run.add(picture, tokens=6)
    run.step()
    counts = run.engine.counts
    assert len(run.engine.schedule.encoding) == 1
    sequence = run.engine._requests[second][0].sequence
    assert 0 < sequence.computed <= picture.spans[0].start, "up to the image, and no further"
    run.step()
    assert not run.engine.schedule.encoding and sequence.computed > picture.spans[0].start
    run.run()
    assert run.tokens(first) == plain_answer(folder, talker, 40) and run.tokens(second) == plain_answer(folder, picture, 6)
    assert run.completions[second, 0].encoded_items == 1 and counts.encoded == 1
    assert {"decode", "preprocess", "encode"} <= {k for k, v in run.completions[second, 0].timings.items() if v > 0}
    alone = run.add(request_of(folder, small_picture(32), "Alone."), tokens=2)
    run.step()
    assert not run.engine.schedule.encoding, "nobody decodes: it is computed in the same step"
    run.run()
    assert run.completions[alone, 0].encoded_items == 1


def test_a_broken_image_in_an_async_encode_fails_its_request_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = driver(folder, async_encode=True)
    talker = request_of(folder, "Go on and on.")
    first = run.add(talker, tokens=30)
    for _ in range(4):
        run.step()
    fine, broken = request_of(folder, small_picture(33), "Fine."), request_of(folder, small_picture(34), "Broken.")
    digest, decode_image = broken.items[0].ref.digest, decode.decode_image

    def fail(ref: object) -> object:
        if ref.digest == digest:  # type: ignore[attr-defined]
            raise MediaError("torn")
        return decode_image(ref)  # type: ignore[arg-type]

    monkeypatch.setattr(decode, "decode_image", fail)
    numbers = [run.add(request, tokens=4) for request in (fine, broken)]
    run.run()
    assert run.tokens(first) == plain_answer(folder, talker, 30) and run.tokens(numbers[0]) == plain_answer(folder, fine, 4)
    assert "torn" in str(run.errors[numbers[1]]) and not run.engine.schedule.encoding
    run.engine.check_integrity()


@pytest.fixture(autouse=True)
def _a_step_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the side stream encodes is done when it is asked for the second time: a step later."""
    init = Encodes.__init__

    def slow(encodes: Encodes, *arguments: object) -> None:
        init(encodes, *arguments)  # type: ignore[arg-type]
        encode_later(encodes, monkeypatch, lambda: 2)

    monkeypatch.setattr(Encodes, "__init__", slow)


def talking(run: Driver, folder: Path) -> int:
    """Somebody in the midst of a long answer."""
    number = run.add(request_of(folder, "Go on and on."), tokens=60)
    for _ in range(4):
        run.step()
    return number


def test_rows_are_saved_before_anything_takes_their_place(folder: Path) -> None:
    """An image encoded asynchronously sends a large one to the host tier, and part of its blocks go to rows that come
    back from there in the same step. Red when these are written before the large one is saved."""
    run = sized_driver(folder, 1000, 32, async_encode=True, embedding_host_cache_gb=0.01, enable_prefix_caching=False)
    small, large, other, new = small_picture(41), small_picture(42, 192, 128), small_picture(43), small_picture(44)
    requests = {name: request_of(folder, f"{name}: ", image) for name, image in (("W", small), ("Z", large), ("V", other))}
    assert [request.items[0].rows for request in requests.values()] == [6, 24, 6]  # 2, 6 and 2 blocks; 8 there are
    for request in requests.values():
        run.add(request)
        run.run()
    cache = run.engine.schedule.embeddings
    talking(run, folder)
    both = request_of(folder, "New: ", new), requests["W"]
    numbers = [run.add(request) for request in both]
    run.step()
    assert len(run.engine.schedule.encoding) == 1 and run.engine.counts.restored == 1 and cache.evictions == 2
    run.run()
    last = run.add(requests["Z"])
    run.run()
    assert run.engine.counts.restored == 2
    assert [run.tokens(number) for number in (*numbers, last)] == [
        plain_answer(folder, request) for request in (*both, requests["Z"])
    ]
    assert run.engine.executor.worker.arena.host_bytes == cache.host_bytes_used


def test_what_was_encoded_asynchronously_in_vain_is_told_to_nobody(folder: Path) -> None:
    """Its request and its rows are gone when another asks for the same image. Red when that one is told of two encodes."""
    run = sized_driver(folder, 1000, 8, async_encode=True)
    talking(run, folder)
    picture = request_of(folder, "Look: ", small_picture(45))
    run.engine.abort(run.add(picture))
    gone = run.add(picture)
    run.step()
    assert len(run.engine.schedule.encoding) == 1 and run.engine.abort(gone)
    run.run()
    between = run.add(request_of(folder, small_picture(46)))  # takes its place
    run.run()
    again = run.add(picture)
    run.run()
    assert run.engine.counts.encoded == 3
    assert run.completions[between, 0].encoded_items == run.completions[again, 0].encoded_items == 1
    assert not run.engine._times.unused


def test_a_failed_async_encode_leaves_nothing_to_tell(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Out of memory fails who waits for the image, not who decodes; the next try is one encode."""
    run = driver(folder, async_encode=True)
    first = talking(run, folder)
    picture = request_of(folder, "Look: ", small_picture(47))
    with monkeypatch.context() as patch:
        patch.setattr(
            run.engine.executor.worker.encodes, "encode_patches", lambda *_: (_ for _ in ()).throw(RuntimeError("no memory"))
        )
        failed = run.add(picture)
        run.step()
    assert "no memory" in str(run.errors[failed]) and not run.engine.schedule.encoding and not run.engine._times.unused
    again = run.add(picture)
    run.run()
    assert run.tokens(again) == plain_answer(folder, picture) and run.completions[again, 0].encoded_items == 1
    assert run.tokens(first) == plain_answer(folder, request_of(folder, "Go on and on."), 60)


@pytest.mark.parametrize("overlap", [False, True])
def test_an_encode_that_lasts_holds_up_its_own_request_alone(
    folder: Path, overlap: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is done only when somebody waits for it. Red when that happens while others decode, or when nobody does and steps go
    by for nothing; and when rows are read too soon."""
    run = driver(folder, async_encode=True, overlap=overlap)
    encode_later(run.engine.executor.worker.encodes, monkeypatch, lambda: 10**9)
    first = talking(run, folder)
    picture = request_of(folder, small_picture(48), "What is it?")
    behind = request_of(folder, "Behind it, without a picture.")
    numbers = [run.add(request) for request in (picture, behind)]
    while (first, 0) not in run.completions:
        assert len(run.engine.schedule.encoding) == 1 or run.steps < 5
        run.step()
    talked = run.steps
    run.run()
    assert run.steps <= talked + 12 and not run.engine.schedule.encoding
    assert [run.tokens(number) for number in numbers] == [plain_answer(folder, request) for request in (picture, behind)]


def test_what_lasts_is_waited_for_by_who_uses_the_tower(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Red when embed() runs the tower while its buffers are in use, ."""
    run = driver(folder, async_encode=True)
    encode_later(run.engine.executor.worker.encodes, monkeypatch, lambda: 10**9)
    talking(run, folder)
    picture = request_of(folder, "Look: ", small_picture(49))
    number = run.add(picture)
    run.step()
    assert len(run.engine.schedule.encoding) == 1
    (item,) = picture.items
    rows = run.engine.embed(item, decode_image(item.ref)[None])
    assert rows is not None and rows.isfinite().all()
    run.run()
    assert run.tokens(number) == plain_answer(folder, picture)


def test_times_of_what_is_never_used_are_not_kept_for_ever(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sightline.engine.stage_times.MOST_UNUSED", 2)
    run = driver(folder, async_encode=True)
    talking(run, folder)
    for seed in range(50, 56):
        gone = run.add(request_of(folder, small_picture(seed)))
        run.step()
        run.engine.abort(gone)
    run.step()
    assert run.engine.counts.encoded == 6 and len(run.engine._times.unused) == 2


def test_the_time_of_images_encoded_together_is_told_once(folder: Path) -> None:
    """Two images of one request in one encode ahead of it. Red when its clock has the tower's run twice."""
    run = driver(folder, async_encode=True, max_num_seqs=1, lookahead_patches=1000)
    talking(run, folder)
    number = run.add(request_of(folder, small_picture(57), small_picture(58), "Both."), tokens=2)
    run.step()
    run.step()
    (beside,) = {id(result): result for result in run.engine._times.unused.values()}.values()
    assert run.engine.counts.encoded == 2 and beside.seconds
    run.run()
    completion = run.completions[number, 0]
    assert completion.encoded_items == 2 and completion.timings["encode"] == pytest.approx(beside.seconds["encode"])


def test_images_of_a_request_are_begun_together(folder: Path) -> None:
    """Red when somebody's decoding makes a request of many images encode one a step."""
    run = driver(folder, async_encode=True)
    talking(run, folder)
    pictures = [small_picture(60 + number) for number in range(5)]
    request = request_of(folder, "Look: ", *pictures, " What are they?")
    number = run.add(request, tokens=3)
    run.step()
    assert len(run.engine.schedule.encoding) == 5
    run.run(until=lambda: (number, 0) in run.completions)
    assert run.tokens(number) == plain_answer(folder, request, 3) and run.completions[number, 0].encoded_items == 5
