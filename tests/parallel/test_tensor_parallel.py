"""Several ranks on a CPU that hold one model together answer as one does, and end together."""

import os
import signal
import time
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from engine.harness import Driver, loaded, plain_answer, request_of, small_picture
from engine.test_process_executor import config_of
from parallel.checkpoints import HEADS, many_heads
from sightline.engine.load import make_engine
from sightline.engine.process_executor import ProcessExecutor, WorkerDied
from sightline.errors import ConfigError
from sightline.timing import StageClock
from sightline.types import Request, StructuredOutput

IN_CI = (("qwen3-vl", 2), ("qwen3.5", 2))
MODES = {2: "auto", 3: "sequence", 4: "tensor"}


def started(folder: Path, ranks: int, longest: int | None = None, **settings: Any) -> Driver:
    """`longest`: tokens of a sequence."""
    config = config_of(folder, tensor_parallel_size=ranks, **settings)
    if longest is not None:
        config = replace(config, model=replace(config.model, max_model_len=longest))
    executor = ProcessExecutor(config, None, StageClock())
    return Driver(make_engine(executor, loaded(folder).tokenizer, config.engine, longest or loaded(folder).max_model_len))


def requests_of(folder: Path) -> list[Request]:
    first, second = small_picture(1), small_picture(2, 60, 130)
    return [
        request_of(folder, "One ", first, " two ", second, " three"),
        request_of(folder, first, "What is this?"),
        request_of(folder, "Plain text, no picture at all, and somewhat longer than the others are."),
    ]


@pytest.mark.parametrize(
    ("family", "ranks"),
    [
        *IN_CI,
        *(pytest.param(*case, marks=pytest.mark.slow) for case in product(HEADS, MODES) if case not in IN_CI),
    ],
)
def test_ranks_answer_as_one(tmp_path: Path, family: str, ranks: int) -> None:
    """With prefix hits, small chunks, sampling and grammars. Red when ranks plan, count or sample
    apart from each other, or a part of a matrix, a head or a token's row is on the wrong one."""
    folder = many_heads(tmp_path / "model", family)
    requests = requests_of(folder) * 2
    settings = {"max_num_batched_tokens": 48, "kv_cache_gb": 0.008, "vision_parallel": MODES[ranks]}
    run = started(folder, ranks, **settings)
    try:
        numbers = [run.add(request, tokens=9) for request in requests]
        shaped = run.add(requests[2], tokens=8, temperature=1.0, seed=3, structured=StructuredOutput("regex", "[ab]{6}"), n=2)
        run.run()
        assert not run.errors
        assert [run.tokens(number) for number in numbers] == [plain_answer(folder, request, 9) for request in requests]
        assert {len(run.completions[shaped, index].text) for index in (0, 1)} == {6}
    finally:
        run.engine.close()


def test_ranks_end_together(tmp_path: Path) -> None:
    """One is killed in the middle of an answer. Red when the engine waits for it, blames another one, or leaves any."""
    folder = many_heads(tmp_path / "model", "qwen3-vl")
    run = started(folder, 2)
    executor = run.engine.executor
    assert isinstance(executor, ProcessExecutor)
    run.add(requests_of(folder)[2], tokens=1000)
    run.step()
    os.kill(executor.pids[1], signal.SIGKILL)
    began = time.monotonic()
    with pytest.raises(WorkerDied, match="rank 1 of 2 was killed by signal 9"):
        while True:
            run.step()
    run.engine.close()
    assert time.monotonic() - began < 30
    assert not any(Path(f"/proc/{pid}").exists() for pid in executor.pids)


def test_too_many_ranks_are_refused_by_name(tmp_path: Path) -> None:
    folder = many_heads(tmp_path / "model", "glm-4.1v")
    with pytest.raises(ConfigError, match="tensor_parallel_size is 5, but the model has only 4 heads"):
        started(folder, 5)
