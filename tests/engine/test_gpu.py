"""The engine on a GPU: the same answers, and no wait for the device but the reading of sampled tokens."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.harness import SMALL_IMAGES, Driver, made_engine, small_picture
from parity.subject import FAMILIES, Subject
from plain_loop import SingleSequence, encode_items
from sightline.config import Config, EngineConfig, ModelConfig
from sightline.engine.pack import pack_step
from sightline.llm import LLM
from sightline.schedule.plan import plan_step
from sightline.types import Request

pytestmark = [pytest.mark.gpu, pytest.mark.parametrize("family", FAMILIES)]


@pytest.fixture
def llm(tiny_checkpoints: dict[str, Path], family: str) -> Iterator[LLM]:
    config = Config(
        ModelConfig(device="cuda", dtype="float32", max_model_len=2048),
        SMALL_IMAGES,
        EngineConfig(kv_cache_gb=0.1, embedding_cache_gb=0.05),
    )
    with LLM(tiny_checkpoints[family], config) as made:
        yield made


def user_turn(*parts: Any) -> list[dict[str, Any]]:
    content = [{"type": "text", "text": p} if isinstance(p, str) else {"type": "image", "image": p} for p in parts]
    return [{"role": "user", "content": content}]


def requests(llm: LLM) -> list[Request]:
    turns = [
        user_turn(small_picture(1), "What is this?"),
        user_turn("One ", small_picture(2, 60, 130), " two ", small_picture(1), " three"),
        user_turn("No picture, and somewhat longer than the others are, so that it takes a few more chunks."),
    ]
    return [Subject.request_of(llm, turn) for turn in turns]


def plain(llm: LLM, request: Request, count: int) -> list[int]:
    sequence = SingleSequence(llm.model, request, len(request) + count, page_size=16)
    logits = sequence.prefill(encode_items(llm.model, request, llm.processor))
    tokens: list[int] = []
    while len(tokens) < count:
        tokens.append(int(logits[0].argmax()))
        logits = sequence.decode(tokens[-1])
    return tokens


def made_driver(llm: LLM, **settings: int) -> Driver:
    config = EngineConfig(kv_cache_gb=0.1, embedding_cache_gb=0.05, **settings)
    return made_engine(llm, config)


@pytest.mark.parametrize("page_size", [16, 64, 128])
@pytest.mark.parametrize("tokens_per_step", [13, 4096])
def test_answers_are_the_plain_loops(llm: LLM, family: str, page_size: int, tokens_per_step: int) -> None:
    run = made_driver(llm, page_size=page_size, max_num_batched_tokens=tokens_per_step)
    asked = requests(llm) * 2
    numbers = [run.add(request, tokens=16) for request in asked]
    run.run()
    assert [run.tokens(number) for number in numbers] == [plain(llm, request, 16) for request in asked]


def test_a_step_does_not_wait_for_the_device(llm: LLM, family: str) -> None:
    """Red when a copy from pageable memory, an item() or a boolean mask comes into the way of a step."""
    run = made_driver(llm, lookahead_patches=0)
    run.add(requests(llm)[1], tokens=4)
    run.run()  # tables that are made once
    other = Subject.request_of(llm, user_turn(small_picture(7, 60, 130), small_picture(8)))
    run.add(other, tokens=4)
    engine = run.engine
    engine._look_ahead()
    while any(engine.encoder.pixels_pending(item) for item in other.items):
        engine.encoder.wait(60)
    step = plan_step(engine.schedule)
    assert step.encodes and any(chunk.samples for chunk in step.chunks)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        engine.encoder.submit(step.encodes)
        found = engine.encoder.poll()
        given = pack_step(step, engine._answers, engine.schedule.embeddings, {})
        failure = engine.executor.submit(given)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert failure is None and not any(result.failed or result.again for result in found)
    output = engine.executor.collect()
    assert output.failure is None and output.token_ids is not None and output.token_ids.shape == (1,)
