"""Images encoded beside the steps of those who decode: nobody's tokens wait for the tower, and answers are the same."""

from pathlib import Path

import pytest

from engine.harness import driver, plain_answer, request_of, small_picture


@pytest.fixture
def folder(tiny_checkpoints: dict[str, Path]) -> Path:
    return tiny_checkpoints["qwen3-vl"]


@pytest.mark.parametrize("overlap", [False, True])
def test_a_step_that_decodes_does_not_compute_what_it_encodes(folder: Path, overlap: bool) -> None:
    """Red when a sequence takes rows in the step that encodes them while somebody decodes, or waits although nobody does."""
    run = driver(folder, encode_aside=True, overlap=overlap)
    talker = request_of(folder, "Go on and on.")
    first = run.add(talker, tokens=40)
    for _ in range(4):
        run.step()
    picture = request_of(folder, "Look: ", small_picture(31), " What is it?")
    second = run.add(picture, tokens=6)
    run.step()
    counts = run.engine.runner.counts
    assert counts.encoded == 1 and len(run.engine.schedule.encoding) == 1
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


def test_a_broken_image_aside_fails_its_request_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = driver(folder, encode_aside=True)
    talker = request_of(folder, "Go on and on.")
    first = run.add(talker, tokens=30)
    for _ in range(4):
        run.step()
    fine, broken = request_of(folder, small_picture(33), "Fine."), request_of(folder, small_picture(34), "Broken.")
    digest = broken.items[0].ref.digest
    from sightline.errors import MediaError
    from sightline.vision import patches

    decode = patches.decode_image

    def fail(ref: object) -> object:
        if ref.digest == digest:  # type: ignore[attr-defined]
            raise MediaError("torn")
        return decode(ref)  # type: ignore[arg-type]

    monkeypatch.setattr("sightline.vision.patches.decode_image", fail)
    monkeypatch.setattr("sightline.vision.decode_ahead.decode_image", fail)
    numbers = [run.add(request, tokens=4) for request in (fine, broken)]
    run.run()
    assert run.tokens(first) == plain_answer(folder, talker, 30) and run.tokens(numbers[0]) == plain_answer(folder, fine, 4)
    assert "torn" in str(run.errors[numbers[1]]) and not run.engine.schedule.encoding
    run.engine.check_integrity()
