"""Warming up: it does what a request does, and afterwards nothing shows that it was there."""

from dataclasses import replace
from pathlib import Path

import pytest

from conftest import FAMILIES, IN_VIEWS
from engine.harness import driver, loaded, small_picture
from sightline.engine import load
from sightline.engine.counts import Counts
from sightline.engine.engine import Engine
from sightline.engine.warm_up import warm_up
from sightline.llm import LLM
from sightline.models.files import ModelFiles, read_model_files
from sightline.timing import StageClock
from sightline.types import SamplingParams

SETTINGS = {"device": "cpu", "max_model_len": 1024, "kv_cache_gb": 0.05, "embedding_cache_gb": 0.02}


class CountingClock(StageClock):
    advances = 0

    def advance(self) -> None:
        self.advances += 1


def files_of(folder: Path) -> ModelFiles:
    llm = loaded(folder)
    return read_model_files(llm.config.model, llm.config.media)


@pytest.mark.parametrize("family", (*FAMILIES, *IN_VIEWS))
def test_everything_runs_and_nothing_is_left(
    tiny_checkpoints: dict[str, Path], family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = driver(tiny_checkpoints[family]).engine
    clear, found = Counts.clear, []
    monkeypatch.setattr(Counts, "clear", lambda counts: (found.append(replace(counts)), clear(counts)))
    clock = CountingClock()
    warm_up(engine, files_of(tiny_checkpoints[family]), clock)
    (seen,) = found
    assert list(clock.seconds) == ["graphs", "first requests"]
    assert clock.advances >= seen.steps, "a start must be seen to advance with each step"
    assert seen.encoded >= 2 and seen.decoded >= 2 and seen.steps > 4 and seen.tokens > 50
    engine.check_integrity()
    assert engine.counts == Counts()
    assert engine.schedule.pages.tree_pages == 0 and engine.schedule.embeddings.used_blocks == 0
    assert not engine.has_work


def test_answers_are_the_same_after_it(tiny_checkpoints: dict[str, Path]) -> None:
    """Red when warming up leaves rows or prefixes that are found later."""
    parts = [{"type": "image", "image": small_picture(3)}, {"type": "text", "text": "What is it?"}]
    told = []
    for warm in (False, True):
        with LLM(tiny_checkpoints["qwen3-vl"], **SETTINGS, min_pixels=1024, warm_up=warm) as llm:
            answer = llm.chat([{"role": "user", "content": parts}], SamplingParams(max_tokens=8, temperature=0))
            told.append((answer.token_ids, answer.cached_tokens, llm.engine.counts.encoded))
    assert told[0] == told[1]


def test_a_model_too_short_for_images_warms_up_with_text(tiny_checkpoints: dict[str, Path]) -> None:
    settings = {**SETTINGS, "max_model_len": 100}
    with LLM(tiny_checkpoints["qwen3-vl"], **settings, warm_up=True, min_pixels=200_000) as llm:
        assert llm.engine.counts == Counts()


@pytest.mark.parametrize(("asked", "runs"), [(None, False), (False, False), (True, True)])
def test_a_cpu_warms_up_only_when_told(
    tiny_checkpoints: dict[str, Path], monkeypatch: pytest.MonkeyPatch, asked: bool | None, runs: bool
) -> None:
    warmed: list[Engine] = []
    monkeypatch.setattr(load, "warm_up", lambda engine, files, clock: warmed.append(engine))
    with LLM(tiny_checkpoints["qwen3-vl"], **SETTINGS, warm_up=asked):
        assert bool(warmed) is runs


def test_what_fails_in_it_is_told(tiny_checkpoints: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("no kernel for this")

    engine = driver(tiny_checkpoints["qwen3-vl"]).engine
    monkeypatch.setattr(engine.executor.worker, "_forward", broken)
    with pytest.raises(RuntimeError, match="no kernel for this"):
        warm_up(engine, files_of(tiny_checkpoints["qwen3-vl"]), StageClock())
