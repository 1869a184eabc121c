"""A tower as wide as that of Qwen3-VL-8B, four blocks deep, on a GPU: kernels that small models are too narrow for.

Attention whose last tiles are split along the keys needs 16 heads and some thousand patches; large products have kernels of
their own. In bfloat16 its rows err at most 1.5 times as much as transformers' own, against float32.
"""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from oracle import Oracle
from parity.subject import Subject, check_rows_in_bfloat16
from sightline.models.create import create_checkpoint
from sightline.models.registry import family_named

pytestmark = pytest.mark.gpu
WIDE = {"hidden_size": 1152, "num_heads": 16, "intermediate_size": 4304}
SIZES = {"720p": [(720, 1280)], "1080p": [(1080, 1920)], "2k": [(1440, 2560)], "four": [(960, 1280)] * 3 + [(200, 300)]}


@pytest.fixture(scope="module")
def wide_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    family = family_named("qwen3-vl")
    tiny = family.sizes["tiny"]
    folder = tmp_path_factory.mktemp("wide") / "qwen3-vl"
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(family.sizes, "tiny", {**tiny, "vision_config": {**tiny["vision_config"], **WIDE}})
        create_checkpoint(folder, "qwen3-vl", "tiny", dtype=torch.float32, seed=5)
    return folder


@pytest.fixture(scope="module")
def sides(wide_checkpoint: Path) -> tuple[Oracle, Oracle, Subject]:
    exact, rounded = (Oracle(wide_checkpoint, "qwen3-vl", "cuda", dtype) for dtype in (torch.float32, torch.bfloat16))
    return exact, rounded, Subject(wide_checkpoint, "cuda", torch.bfloat16)


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_rows_in_bfloat16(sides: tuple[Oracle, Oracle, Subject], sizes: list[tuple[int, int]]) -> None:
    exact, rounded, ours = sides
    random = np.random.default_rng(0)
    pictures = [Image.fromarray(random.integers(0, 256, (high, wide, 3), dtype=np.uint8)) for high, wide in sizes]
    parts = [{"type": "image", "image": picture} for picture in pictures]
    messages = [{"role": "user", "content": [*parts, {"type": "text", "text": "What is it?"}]}]
    check_rows_in_bfloat16(exact, rounded, ours, messages)
