"""Frames of a video that equal earlier ones share their embeddings. Red when an answer changes, when they are encoded after
all, or when frames that differ in one pixel are taken for equal."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import FAMILIES
from engine.harness import Driver, driver, loaded, plain_answer, small_picture
from sightline.config import Config, EngineConfig, ModelConfig
from sightline.encoder.decoding.pixels import Pixels
from sightline.encoder.decoding.repeats import drop_repeats, find_repeats
from sightline.llm import LLM
from sightline.types import Request, SamplingParams

SHOWN = (1, 1, 2, 2, 1, 1, 1, 1, 3, 2, 2, 2)  # which picture each frame shows


def clip_of(folder: Path, shown: tuple[int, ...] = SHOWN) -> Request:
    frames = [small_picture(seed) for seed in shown]
    content: list[dict[str, Any]] = [{"type": "video", "video": frames, "fps": 2}, {"type": "text", "text": "What happens?"}]
    return loaded(folder).prompts.chat([{"role": "user", "content": content}])


def answered(folder: Path, request: Request, **settings: Any) -> tuple[Driver, list[int]]:
    run = driver(folder, threads=True, **settings)
    number = run.add(request)
    run.run()
    return run, run.tokens(number)


@pytest.mark.parametrize("family", FAMILIES)
def test_answers_are_those_without_sharing(tiny_checkpoints: dict[str, Path], family: str) -> None:
    folder = tiny_checkpoints[family]
    request = clip_of(folder)
    (item,) = request.items
    groups = item.grids[0][0]
    assert groups > 2 and not len(item.frame_indices) % groups
    shared, found = answered(folder, request)
    alone, expected = answered(folder, request, share_repeated_frames=False)
    assert found == expected == plain_answer(folder, request)
    step = len(item.frame_indices) // groups
    shown = [SHOWN[index] for index in item.frame_indices]
    differ = len({tuple(shown[first : first + step]) for first in range(0, len(shown), step)})
    assert differ < groups and shared.engine.counts.frames_shared == groups - differ
    assert alone.engine.counts.frames_shared == 0
    assert shared.engine.counts.patches * groups == alone.engine.counts.patches * differ


def test_a_worker_process_has_them_too(tiny_checkpoints: dict[str, Path]) -> None:
    """What it is told crosses a socket, and its pixels are those of the frames that differ."""
    folder = tiny_checkpoints["qwen3-vl"]
    model = ModelConfig(device="cpu", dtype="float32", max_model_len=2048)
    frames = [small_picture(seed) for seed in SHOWN]
    question = [{"role": "user", "content": [{"type": "video", "video": frames}, {"type": "text", "text": "What happens?"}]}]
    texts = []
    for process in (False, True):
        engine = EngineConfig(kv_cache_gb=0.05, embedding_cache_gb=0.02, warm_up=False, worker_process=process)
        with LLM(folder, Config(model, engine=engine)) as llm:
            texts.append(llm.chat(question, SamplingParams(max_tokens=8, temperature=0)).token_ids)
    assert texts[0] == texts[1]


def noise(groups: int, size: int = 2) -> np.ndarray:
    return np.random.default_rng(7).integers(0, 256, (groups * size, 40, 40, 3), np.uint8)


def test_one_pixel_makes_a_difference() -> None:
    """Also one that no sample has, and in groups whose samples and checksums are alike."""
    frames = noise(1).repeat(6, 0).reshape(2, 6, 40, 40, 3).swapaxes(0, 1).reshape(12, 40, 40, 3).copy()
    assert find_repeats(frames, 6) == (0,) * 6
    frames[5, 3, 3, 1] ^= 1
    frames[9, 3, 3, 1] ^= 1
    frames[10, 39, 39, 2] ^= 128
    assert find_repeats(frames, 6) == (0, 0, 2, 0, 2, 5)


def test_equal_checksums_are_not_taken_for_equal_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sightline.encoder.decoding.repeats.zlib.crc32", lambda _: 1)
    frames = np.concatenate([noise(1)] * 3)
    frames[2, 5, 5, 0] ^= 1
    assert find_repeats(frames, 3) == (0, 1, 0)


def test_what_is_kept_is_in_order_and_in_place() -> None:
    parts = noise(3).reshape(3, 2, 40, 40, 3)
    frames = np.concatenate([parts[n] for n in (0, 0, 1, 0, 2, 1)])
    kept = drop_repeats(Pixels(frames, 1.0), 6)
    assert kept.groups == (0, 0, 1, 0, 2, 1) and kept.seconds == 1.0
    assert np.array_equal(kept.frames, parts.reshape(6, 40, 40, 3)) and kept.held_bytes == frames.nbytes
    assert np.shares_memory(kept.frames, frames)


def test_frames_that_differ_are_left_alone() -> None:
    pixels = Pixels(noise(4), 0.0)
    assert drop_repeats(pixels, 4) is pixels and pixels.held_bytes == pixels.frames.nbytes
