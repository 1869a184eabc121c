"""A worker in a process of its own: the same answers, the same failures, and an end that is noticed."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.harness import Driver, loaded, plain_answer, request_of, small_picture
from sightline.config import Config, EngineConfig, MediaConfig, ModelConfig
from sightline.engine.load import make_engine
from sightline.engine.process_executor import ProcessExecutor, WorkerDied
from sightline.errors import ConfigError, MediaError
from sightline.media.decode import decode_image
from sightline.timing import StageClock
from sightline.types import Request, StructuredOutput

SETTINGS: dict[str, Any] = {"kv_cache_gb": 0.05, "embedding_cache_gb": 0.02, "page_size": 4, "warm_up": False}


def config_of(folder: Path, **settings: Any) -> Config:
    chosen = EngineConfig(**{**SETTINGS, **settings})
    return Config(ModelConfig(model=str(folder), device="cpu", dtype="float32", max_model_len=2048), MediaConfig(), chosen)


def started(folder: Path, **settings: Any) -> Driver:
    config = config_of(folder, **settings)
    executor = ProcessExecutor(config, None, StageClock())
    return Driver(make_engine(executor, loaded(folder).tokenizer, config.engine, loaded(folder).max_model_len))


@pytest.fixture(scope="module", params=[False, True], ids=["in turn", "overlapped"])
def run(tiny_checkpoints: dict[str, Path], request: pytest.FixtureRequest) -> Iterator[Driver]:
    made = started(tiny_checkpoints["qwen3-vl"], overlap=request.param, async_encode=request.param)
    yield made
    made.engine.close()


@pytest.fixture
def folder(tiny_checkpoints: dict[str, Path]) -> Path:
    return tiny_checkpoints["qwen3-vl"]


def some_requests(folder: Path) -> list[Request]:
    first, second = small_picture(1), small_picture(2, 60, 130)
    return [
        request_of(folder, "One ", first, " two ", second, " three"),
        request_of(folder, first, "What is this?"),
        request_of(folder, "Plain text, no picture at all, and somewhat longer than the others are."),
    ]


def test_the_answers_are_the_plain_loops(run: Driver, folder: Path) -> None:
    requests = some_requests(folder) * 2
    numbers = [run.add(request, tokens=9) for request in requests]
    run.run()
    assert [run.tokens(number) for number in numbers] == [plain_answer(folder, request, 9) for request in requests]


def test_sampling_penalties_grammars_and_logprobs_cross(run: Driver, folder: Path) -> None:
    """Red when a sampling parameter, a count, a random number or a mask is lost on the way, or comes too late."""
    from engine.harness import driver

    request = some_requests(folder)[2]
    ways: list[dict[str, Any]] = [
        {"temperature": 1.0, "seed": 7, "top_p": 0.9, "n": 2},
        {"temperature": 0.8, "seed": 8, "repetition_penalty": 1.4, "frequency_penalty": 0.5},
        {"temperature": 1.0, "seed": 9, "structured": StructuredOutput("regex", "[ab]{12}")},
        {"logprobs": True, "top_logprobs": 3, "logit_bias": {40: 5.0}, "min_tokens": 5, "end_tokens": frozenset({3, 9})},
    ]
    here = driver(folder)
    found = [run.add(request, tokens=12, **way) for way in ways]
    right = [here.add(request, tokens=12, **way) for way in ways]
    run.run()
    here.run()
    assert not run.errors
    for way, mine, theirs in zip(ways, found, right, strict=True):
        for index in range(way.get("n", 1)):
            one, other = run.completions[mine, index], here.completions[theirs, index]
            assert one.token_ids == other.token_ids, way
            assert [p.token_id for p in one.logprobs] == [p.token_id for p in other.logprobs]


def test_a_broken_image_and_memory_that_is_shared(run: Driver, folder: Path) -> None:
    descriptors = len(list(Path("/proc/self/fd").iterdir()))
    torn = request_of(folder, broken_png(), "Torn.")
    fine = request_of(folder, small_picture(33), "Fine.")
    numbers = [run.add(request, tokens=3) for request in (torn, fine)]
    run.run()
    assert isinstance(run.errors[numbers[0]], MediaError) and run.tokens(numbers[1]) == plain_answer(folder, fine, 3)
    (item,) = fine.items
    rows = run.engine.embed(item, decode_image(item.ref)[None])
    assert isinstance(rows, torch.Tensor) and rows.shape[0] == item.rows and rows.isfinite().all()
    assert len(list(Path("/proc/self/fd").iterdir())) <= descriptors, "pixels in shared memory are let go"


def broken_png() -> bytes:
    import io

    data = io.BytesIO()
    small_picture(34).save(data, "PNG")
    return data.getvalue()[:300]


def test_a_model_that_cannot_be_loaded_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nowhere"):
        ProcessExecutor(config_of(tmp_path / "nowhere"), None, StageClock())


def test_a_step_that_fails_in_the_worker_costs_its_requests(folder: Path) -> None:
    """A token beyond the vocabulary makes the step fail there, and the host hears of it late. Red when the engine dies with it,
    or trusts what the step was to compute."""
    run = started(folder, overlap=False)
    try:
        request = request_of(folder, "Fails once.")
        number = run.add(request, tokens=6)
        run.step()
        (sequence,) = run.engine.schedule.running
        sequence.output[-1] = 10**6
        run.step()
        assert number in run.errors and "IndexError" in str(run.errors[number])
        assert run.engine.schedule.pages.tree_pages == 0
        again = run.add(request, tokens=6)
        run.run()
        assert run.tokens(again) == plain_answer(folder, request, 6)
    finally:
        run.engine.close()


def test_a_worker_that_dies_is_noticed(folder: Path) -> None:
    run = started(folder)
    executor = run.engine.executor
    assert isinstance(executor, ProcessExecutor)
    run.add(request_of(folder, "Go on."), tokens=50)
    run.step()
    os.kill(executor.pids[0], signal.SIGKILL)
    with pytest.raises(WorkerDied, match="killed by signal 9"):
        for _ in range(60):
            run.step()
    run.engine.close()
