"""Everything on, in bfloat16, on a GPU: graphs of tower and steps, overlap, flash-attn-4, all kernels.

A token is right if it is float32's best, or if float32's best two are so close that rounding may choose either: closer than
twice the error that plain torch definitions make in bfloat16.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from engine.harness import SMALL_IMAGES, Driver, made_engine, small_picture
from engine.test_gpu import user_turn
from parity.subject import FAMILIES, Subject
from sightline.config import Config, EngineConfig, ModelConfig
from sightline.encoder.graphs import TowerGraphs
from sightline.llm import LLM
from sightline.models.inputs import StateCache
from sightline.ops.dispatch import definitions_only
from sightline.types import Grid, Request
from sightline.worker.step_graphs import StepBucket

pytestmark = [pytest.mark.gpu, pytest.mark.parametrize("family", FAMILIES)]
SMALL = EngineConfig(kv_cache_gb=0.1, embedding_cache_gb=0.05, warm_up=False)


@pytest.fixture
def llm(tiny_checkpoints: dict[str, Path], family: str) -> Iterator[LLM]:
    config = Config(ModelConfig(device="cuda", dtype="bfloat16", max_model_len=2048), SMALL_IMAGES, SMALL)
    with LLM(tiny_checkpoints[family], config) as made:
        yield made


def everything_on(llm: LLM, **settings: object) -> Driver:
    chosen = {"tower_graphs": True, "step_graphs": True, "overlap": True, "kv_cache_gb": 0.1, "embedding_cache_gb": 0.05}
    made = made_engine(llm, EngineConfig(**{**chosen, **settings}))
    for cache in made.engine.executor.worker.caches:  # a slot that is read before it is written spoils the answer
        for tensor in cache.tensors if isinstance(cache, StateCache) else (cache.keys, cache.values):
            tensor.fill_(float("nan"))
    return made


def asked(llm: LLM) -> list[Request]:
    turns = [
        user_turn(small_picture(1), "What is this?"),
        user_turn("One ", small_picture(2, 60, 130), " two ", small_picture(1), " three"),
        user_turn("No picture, and somewhat longer than the others are, so that it takes a few more chunks."),
        user_turn("x" * 700),
    ]
    return [Subject.request_of(llm, turn) for turn in turns]


def check(exact: Subject, rounded: Subject, request: Request, tokens: list[int]) -> None:
    """Each token is the best, or as good as the best to within what bfloat16 costs. Where tokens choose experts, rounding may
    choose others, and what that costs differs: there the kernels' own error counts too, which as a whole is no larger."""
    with definitions_only():
        truth = exact.logits(request, tokens[:-1]).float()[len(request) - 1 :]
        theirs = rounded.logits(request, tokens[:-1]).float()[len(request) - 1 :]
    error = (theirs - truth).abs().max()
    if rounded.llm.model.spec.text.experts is not None:
        ours = rounded.logits(request, tokens[:-1]).float()[len(request) - 1 :]
        assert (ours - truth).square().mean().sqrt() < 1.5 * (theirs - truth).square().mean().sqrt()
        error = torch.maximum(error, (ours - truth).abs().max())
    chosen = truth.gather(1, torch.tensor(tokens, device=truth.device)[:, None])[:, 0]
    assert (truth.max(1).values - chosen < 2 * error).all()


@pytest.mark.parametrize("tokens_per_step", [13, 100, 4096])
def test_answers_are_right(llm: LLM, family: str, tiny_checkpoints: dict[str, Path], tokens_per_step: int) -> None:
    run = everything_on(llm, max_num_batched_tokens=tokens_per_step)
    requests = asked(llm) * 4
    numbers = [run.add(request, tokens=8 + place) for place, request in enumerate(requests)]
    run.run()
    assert not run.errors
    folder = tiny_checkpoints[family]
    exact, rounded = Subject(folder, "cuda", torch.float32), Subject(folder, "cuda", torch.bfloat16)
    for number, request in zip(numbers, requests, strict=True):
        check(exact, rounded, request, run.tokens(number))
    graphs = run.engine.executor.worker.step_graphs
    assert graphs is not None and len(graphs) > 3
    exact.llm.close()
    rounded.llm.close()


def test_a_prompt_in_a_graph_of_as_many_tokens_as_sequences(llm: LLM, family: str, tiny_checkpoints: dict[str, Path]) -> None:
    """Red when a step that has room for as many sequences as tokens is taken for one of single tokens."""
    run = everything_on(llm, max_num_batched_tokens=60)
    requests = [Subject.request_of(llm, user_turn(letter)) for letter in "abcdefghijkl"]
    numbers = [run.add(request, tokens=60) for request in requests]
    while not all(answer.sequence.output for answer in run.engine._answers.values()):
        run.step()
    requests.append(Subject.request_of(llm, user_turn("x" * 100)))
    numbers.append(run.add(requests[-1], tokens=8))
    run.run()
    graphs = run.engine.executor.worker.step_graphs
    assert not run.errors and graphs is not None and StepBucket(64, 64, False) in graphs._graphs
    folder = tiny_checkpoints[family]
    exact, rounded = Subject(folder, "cuda", torch.float32), Subject(folder, "cuda", torch.bfloat16)
    for number, request in zip(numbers, requests, strict=True):
        check(exact, rounded, request, run.tokens(number))
    exact.llm.close()
    rounded.llm.close()


def test_the_same_again(llm: LLM, family: str) -> None:
    """Red when an answer depends on what ran before, or on what the device does meanwhile."""
    run = everything_on(llm)
    answers = []
    for _ in range(3):
        numbers = [run.add(request, tokens=24) for request in asked(llm) * 8]
        run.run()
        answers.append([run.tokens(number) for number in numbers])
        run.engine.flush()
    assert answers[0] == answers[1] == answers[2]


def test_tower_graphs_with_flash_attention_beside_decoding(llm: LLM, family: str) -> None:
    """Mixes of images through graphs equal the tower without them, while another stream decodes; rows that were handed out
    stay as they were."""
    run = everything_on(llm)
    tower = llm.model.vision
    graphs = run.engine.executor.worker.encodes._graphs
    assert isinstance(graphs, TowerGraphs)
    generator = torch.Generator().manual_seed(0)
    width = llm.model.spec.patch_tower.patch_embed.compact_width
    for request in asked(llm)[2:] * 8:
        run.add(request, tokens=400)
    side, kept = torch.cuda.Stream(), []
    with torch.inference_mode():
        for number in range(100):
            grids: list[Grid] = [
                (1, 2 * int(h), 2 * int(w)) for h, w in torch.randint(1, 13, (1 + number % 5, 2), generator=generator)
            ]
            patches = [torch.randn(h * w, width, generator=generator).to("cuda", torch.bfloat16) for _, h, w in grids]
            batch = tower.make_batch(patches, grids)
            expected = tower(batch)
            torch.cuda.synchronize()
            if run.engine.has_work:
                run.step()
            with torch.cuda.stream(side):
                found = graphs.run(batch)
            torch.cuda.synchronize()
            assert found is not None
            kept.append((found, expected))
    for found, expected in kept:
        torch.testing.assert_close(found, expected, atol=2e-2, rtol=2e-2)
