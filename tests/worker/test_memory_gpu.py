"""The memory plan on a GPU: real requests at the limits stay within it, and an engine survives running out."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from conftest import FAMILIES
from engine.harness import SMALL_IMAGES, Driver, made_engine, small_picture
from parity.subject import Subject
from sightline.config import Config, EngineConfig, ModelConfig
from sightline.errors import ConfigError, OutOfMemoryError
from sightline.llm import LLM

pytestmark = pytest.mark.gpu

LIMITS = EngineConfig(kv_cache_gb=0.5, embedding_cache_gb=0.1, max_num_seqs=64, max_num_batched_tokens=2048)


@pytest.fixture(params=FAMILIES)
def llm(tiny_checkpoints: dict[str, Path], request: pytest.FixtureRequest) -> Iterator[LLM]:
    config = Config(ModelConfig(device="cuda", dtype="bfloat16", max_model_len=4096), SMALL_IMAGES, LIMITS)
    with LLM(tiny_checkpoints[request.param], config) as made:
        yield made


def made_driver(llm: LLM, **settings: object) -> Driver:
    config = dataclasses.replace(LIMITS, **settings)  # type: ignore[arg-type]
    return made_engine(llm, config)


def test_requests_at_the_limits_stay_within_the_plan(llm: LLM) -> None:
    """Red when a step takes more than was measured for it."""
    run = made_driver(llm)
    peaks = run.engine.executor.facts.memory.peaks
    assert peaks is not None and peaks.tower > 0  # a step of so small a model may fit into what torch has taken for others
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_reserved()
    options = {"temperature": 1.0, "top_p": 0.9, "repetition_penalty": 1.1, "frequency_penalty": 0.2, "logprobs": True}
    for number in range(80):
        ids = [(number * 31 + place) % 200 for place in range(37)]
        run.add(llm.prompts.token_ids(ids), tokens=24, top_logprobs=5, **options)
    run.add(llm.prompts.token_ids([place % 200 for place in range(4000)]), tokens=8)
    for seed in range(8):
        parts = [{"type": "image", "image": small_picture(seed, 900, 700)}, {"type": "text", "text": "What is it?"}]
        run.add(Subject.request_of(llm, [{"role": "user", "content": parts}]), tokens=8)
    run.run()
    torch.cuda.synchronize()
    assert not run.errors
    assert (
        torch.cuda.max_memory_reserved() - before <= peaks.activations + peaks.graphs + run.engine.executor.facts.memory.margin
    )


def test_the_plan_leaves_what_it_is_told_to(llm: LLM) -> None:
    """What others take counts, so nobody may come or go meanwhile."""
    free, total = torch.cuda.mem_get_info()
    share = round((total - free) / total + 0.1, 2)
    run = made_driver(llm, kv_cache_gb=None, gpu_memory_utilization=share)
    plan = run.engine.executor.facts.memory
    assert plan.peaks is not None
    free_now, _ = torch.cuda.mem_get_info()
    planned = total - free_now + plan.peaks.activations + plan.peaks.graphs + plan.margin
    assert abs(planned - share * total) < 2**30


def test_a_share_that_is_too_small_says_what_to_change(llm: LLM) -> None:
    with pytest.raises(ConfigError, match="raise gpu_memory_utilization to"):
        made_driver(llm, kv_cache_gb=None, gpu_memory_utilization=0.001)


def test_running_out_costs_the_step_and_gives_memory_back(llm: LLM) -> None:
    run = made_driver(llm)
    compute, left = run.engine.executor.worker._forward, [1]

    def greedy(*arguments: object) -> object:
        if left:
            left.pop()
            held = [torch.empty(2**30, dtype=torch.uint8, device="cuda")]
            while True:  # until the device has no more
                held.append(torch.empty(2**33, dtype=torch.uint8, device="cuda"))
        return compute(*arguments)  # type: ignore[arg-type]

    run.engine.executor.worker._forward = greedy  # type: ignore[assignment,method-assign]
    request = llm.prompts.token_ids(list(range(50)))
    before, _ = torch.cuda.mem_get_info()
    failed = run.add(request)
    run.run()
    assert isinstance(run.errors[failed], OutOfMemoryError)
    after, _ = torch.cuda.mem_get_info()
    assert after > before - 2**33  # others may be on the device, too
    retried = run.add(request)
    run.run()
    assert len(run.tokens(retried)) == 8
