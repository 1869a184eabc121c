"""Images of requests that wait are decoded beside the steps of others. Red when one is decoded twice, for nothing, or lost."""

import io
from pathlib import Path

import pytest
from PIL import Image

from parity.conversations import picture
from sightline import LLM, SamplingParams
from sightline.engine.engine import Engine
from sightline.errors import MediaError
from sightline.run.sampling_params import resolve_sampling
from sightline.timing import StageClock
from sightline.types import Request

SAMPLING = SamplingParams(max_tokens=4, temperature=0, ignore_eos=True)


@pytest.fixture
def llm(tiny_checkpoints: dict[str, Path]) -> LLM:
    """One image at a time, and none encoded ahead: the others wait to be decoded."""
    with LLM(tiny_checkpoints["qwen3-vl"], device="cpu", max_patches_per_step=1, lookahead_patches=0) as made:
        yield made


def png(seed: int) -> bytes:
    stream = io.BytesIO()
    picture(90 + 2 * seed, 70, seed).save(stream, "PNG")
    return stream.getvalue()


def ask(*images: bytes) -> list[dict[str, object]]:
    parts = [{"type": "image", "image": image} for image in images]
    return [{"role": "user", "content": [*parts, {"type": "text", "text": "What?"}]}]


def add(llm: LLM, engine: Engine, *images: bytes) -> int:
    request = llm._chat_builder(ask(*images), None, None)(StageClock())
    assert isinstance(request, Request)
    return engine.add(
        request, resolve_sampling(SAMPLING, llm.defaults.sampling, llm.spec.text.vocab_size), end_tokens=frozenset()
    )


def finish(engine: Engine) -> dict[int, tuple[int, ...]]:
    found = {}
    while engine.has_work:
        for update in engine.step():
            if update.completion is not None:
                found[update.request_id] = update.completion.token_ids
        engine.check_integrity()
    return found


def test_each_image_is_decoded_once_and_answers_stay(llm: LLM) -> None:
    engine = llm.engine
    images = [png(seed) for seed in range(5)]
    alone = [llm.chat(ask(image), SAMPLING).token_ids for image in images]
    engine.flush()
    before = engine.runner.counts.decoded

    def all_at_once() -> list[tuple[int, ...]]:
        numbers = [add(llm, engine, image) for image in images]
        engine.step()
        assert len(engine.runner.ahead) == 4  # the first was encoded; the others are being decoded
        found = finish(engine)
        return [found[number] for number in numbers]

    assert llm._thread.call(all_at_once) == alone
    assert engine.runner.counts.decoded - before == 5 and len(engine.runner.ahead) == 0


def test_what_is_known_is_not_decoded(llm: LLM) -> None:
    engine = llm.engine
    images = [png(seed) for seed in range(10, 14)]
    llm.chat(ask(*images), SAMPLING)
    before = engine.runner.counts.decoded
    llm.chat([ask(*images), ask(*images, png(20))], SAMPLING)
    assert engine.runner.counts.decoded - before == 1


def test_aborted_and_broken_ones(llm: LLM) -> None:
    engine = llm.engine
    good, broken = png(30), png(31)[:400]

    def run() -> None:
        first, second = add(llm, engine, png(29)), add(llm, engine, good)
        engine.step()
        assert len(engine.runner.ahead) == 1
        engine.abort(second)
        add(llm, engine, png(32))
        engine.step()
        found = finish(engine)
        assert first in found and second not in found and len(engine.runner.ahead) == 0

    llm._thread.call(run)
    with pytest.raises(MediaError):
        llm.chat([ask(png(33)), ask(broken)], SAMPLING)
    assert llm.chat(ask(good), SAMPLING).token_ids


def test_memory_is_bounded(llm: LLM) -> None:
    engine = llm.engine
    engine.runner.ahead._most_bytes = 3 * 100 * 70 * 2 + 10  # two pictures

    def run() -> None:
        for seed in range(40, 46):
            add(llm, engine, png(0) if seed == 40 else _same_size(seed))
        engine.step()
        assert 0 < engine.runner.ahead.bytes_held <= engine.runner.ahead._most_bytes and len(engine.runner.ahead) == 2
        assert len(finish(engine)) == 6

    llm._thread.call(run)


def _same_size(seed: int) -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", (100, 70), (seed, 2 * seed, 3 * seed)).save(stream, "PNG")
    return stream.getvalue()
