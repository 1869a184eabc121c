"""The backend that a user names is what attention runs, in calls and in graphs, or the start is refused."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from conftest import DENSE
from encoder.test_graphs import attention_by_starts
from engine.harness import driver, loaded, plain_answer, request_of, small_picture
from engine.test_process_executor import started
from ops.run_again import run_again
from sightline.config import EngineConfig
from sightline.encoder.graphs import TowerGraphs, chosen_segment_attention
from sightline.errors import ConfigError
from sightline.ops.attention import FA4, SDPA, TRITON, paged_attention, segment_attention
from sightline.ops.dispatch import Implementation, NoKernelError, Op, definitions_only, using_backend
from sightline.worker.step_graphs import StepGraphs
from sightline.worker.workspaces import chosen_attention
from worker.test_step_graphs import attention_by_device


def counting(op: str, backend: str, run: Any, ran: Counter[str]) -> Implementation[Any, Any]:
    def counted(*args: Any, **kwargs: Any) -> Any:
        ran[f"{op} {backend}"] += 1
        return run(*args, **kwargs)

    return Implementation(backend, counted, lambda *_, **__: True, True, backend=backend)


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Calls by op and backend, on a machine that has kernels of two for both ops."""
    found: Counter[str] = Counter()
    for op, run in ((paged_attention, attention_by_device), (segment_attention, attention_by_starts)):
        monkeypatch.setattr(op, "kernels", [counting(op.name, backend, run, found) for backend in (FA4, TRITON)])
    return found


@pytest.mark.parametrize("language", [None, FA4, TRITON, SDPA])
def test_choose_takes_the_backend_that_is_named(ran: Counter[str], language: str | None) -> None:
    """Red if another's kernel is chosen, if the definition is never, or if a name outlives its block."""
    with using_backend(language):
        chosen = segment_attention.choose(*[torch.zeros(0)] * 3, torch.zeros(0), (), 1.0)
        with definitions_only():
            assert segment_attention.choose(*[torch.zeros(0)] * 3, torch.zeros(0), (), 1.0) is segment_attention.reference
    assert chosen.backend == (language or FA4)
    assert segment_attention.choose(*[torch.zeros(0)] * 3, torch.zeros(0), (), 1.0).backend == FA4


def test_a_backend_without_a_kernel_is_no_silent_fallback(monkeypatch: pytest.MonkeyPatch) -> None:
    """Red if torch's attention runs where another was named."""
    monkeypatch.setattr(segment_attention, "kernels", [])
    with using_backend(FA4), pytest.raises(NoKernelError, match="segment_attention has no kernel of fa4"):
        segment_attention.choose(*[torch.zeros(0)] * 3, torch.zeros(0), (), 1.0)
    other: Op[Any, Any] = Op(lambda x: x, lambda _: iter(()), {})
    with using_backend(FA4):
        assert other(3) == 3, "an op without backends is not concerned"


@pytest.mark.parametrize(("language", "tower"), [("fa4", "triton"), ("triton", "sdpa"), ("sdpa", "fa4"), ("auto", "auto")])
def test_steps_and_graphs_run_it(tiny_checkpoints: dict[str, Path], ran: Counter[str], language: str, tower: str) -> None:
    """Red if a graph is captured with another backend than calls run with, or if one setting is taken for the other."""
    folder = tiny_checkpoints["qwen3-vl"]
    request = request_of(folder, "What is ", small_picture(1), " then?")
    expected = plain_answer(folder, request)
    model = loaded(folder).model
    try:
        run = driver(folder, attention_backend=language, mm_attention_backend=tower)
        worker, limits = run.engine.executor.worker, run.engine.schedule.limits
        steps_safe = chosen_attention(model, EngineConfig(), (3, 1)).graph_safe
        with using_backend(model.tower_backend):
            tower_safe = chosen_segment_attention(model.vision).graph_safe
        assert (steps_safe, tower_safe) == (language != "sdpa", tower != "sdpa"), "what a graph may hold is asked of another"
        sizes = (limits.max_sequences, limits.max_tokens, run.engine.max_model_len)
        if steps_safe:
            worker.step_graphs = StepGraphs(model, worker.caches, worker.arena.rows, worker._sampled, run_again, *sizes)
        if tower_safe:
            worker.encodes._graphs = TowerGraphs(model.vision, run_again, encode=model.encode)
        ran.clear()
        number = run.add(request)
        run.run()
        assert run.tokens(number) == expected
        assert not steps_safe or len(worker.step_graphs) > 0
        assert not tower_safe or len(worker.encodes._graphs) > 0
    finally:
        model.use_backends(None, None)
    wanted = {"paged_attention": language.replace("auto", "fa4"), "segment_attention": tower.replace("auto", "fa4")}
    assert set(ran) == {f"{op} {backend}" for op, backend in wanted.items() if backend != "sdpa"}


@pytest.mark.parametrize("setting", ["attention_backend", "mm_attention_backend"])
@pytest.mark.parametrize("backend", ["fa4", "triton"])
def test_what_cannot_run_is_refused_at_the_start(tiny_checkpoints: dict[str, Path], setting: str, backend: str) -> None:
    """Red if an engine starts that fails each request, or that runs something else."""
    folder = tiny_checkpoints["qwen3-vl"]
    try:
        with pytest.raises(ConfigError, match=f"^{setting} is '{backend}', but it cannot run here for .* in float32 on cpu"):
            driver(folder, **{setting: backend})
    finally:
        loaded(folder).model.use_backends(None, None)


def test_a_worker_process_refuses_too(tiny_checkpoints: dict[str, Path]) -> None:
    with pytest.raises(ConfigError, match=r"^attention_backend is 'fa4', but it cannot run here"):
        started(tiny_checkpoints["qwen3-vl"], attention_backend="fa4")


def test_torchs_own_runs_everywhere(tiny_checkpoints: dict[str, Path]) -> None:
    for family in DENSE:
        folder = tiny_checkpoints[family]
        request = request_of(folder, "What is ", small_picture(1), " then?")
        try:
            run = driver(folder, attention_backend="sdpa", mm_attention_backend="sdpa")
            number = run.add(request)
            run.run()
        finally:
            loaded(folder).model.use_backends(None, None)
        assert run.tokens(number) == plain_answer(folder, request)
