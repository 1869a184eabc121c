"""Real photographs: in bfloat16 the tower's rows err at most 1.5 times as much as transformers' own, against float32."""

from pathlib import Path

import pytest
import torch
from PIL import Image

from assets import asset_files
from oracle import oracle
from parity.subject import DEVICES, FAMILIES, both, check_rows_in_bfloat16

SIDE = {"cpu": 448, "cuda": 1600}  # pixels of the longer side: as large as a machine can do in a moment


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("photo", asset_files("images/photos/qw_*.jp*g", "images/photos/sk_*.jpg"))
def test_rows_in_bfloat16(tiny_checkpoints: dict[str, Path], family: str, device: str, photo: Path) -> None:
    with Image.open(photo) as opened:
        picture = opened.convert("RGB")
    picture.thumbnail((SIDE[device], SIDE[device]))
    messages = [{"role": "user", "content": [{"type": "image", "image": picture}, {"type": "text", "text": "What is it?"}]}]
    exact = oracle(tiny_checkpoints[family], family, device)
    rounded, ours = both(tiny_checkpoints, family, device, torch.bfloat16)
    check_rows_in_bfloat16(exact, rounded, ours, messages)
