"""Prompts, embeddings, logits and greedy tokens equal transformers' on the same weights: without images those of the base
weights, with images those of weights that the adapter is merged into."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from parity.conversations import conversations, picture
from parity.subject import TOLERANCE, subject
from phi4_multimodal.oracle import Phi4Oracle, Pixels, oracle, pixels_of
from sightline.types import Request

GREEDY_TOKENS = 64
CROP = 56  # of the tiny checkpoint
# Width and height of a picture: one crop and many, padded by odd and even numbers of patches, or by less than one.
SIZES = [
    (56, 56),
    (40, 30),
    (57, 56),
    (112, 70),
    (70, 150),
    (300, 180),
    (190, 330),
    (500, 21),
    (33, 620),
    (900, 700),
    (101, 99),
]

every_conversation = pytest.mark.parametrize("name", conversations())


def pixels(request: Request) -> list[Pixels]:
    return [pixels_of(item, CROP) for item in request.items]


def judge(folder: Path, request: Request, dtype: torch.dtype = torch.float32) -> Phi4Oracle:
    return oracle(folder, adapted=bool(request.items), dtype=dtype)


@every_conversation
def test_rows_and_logits(phi4: Path, name: str) -> None:
    ours = subject(phi4)
    request = ours.request(conversations()[name])
    reference, images = judge(phi4, request), pixels(request)
    rows = ours.rows(request)
    if images:
        torch.testing.assert_close(rows, torch.cat(reference.rows(images)), atol=TOLERANCE, rtol=0)
    torch.testing.assert_close(ours.logits(request), reference.logits(request, images), atol=TOLERANCE, rtol=0)


@every_conversation
def test_greedy_tokens(phi4: Path, name: str) -> None:
    ours = subject(phi4)
    request = ours.request(conversations()[name])
    answer = judge(phi4, request).greedy(request, pixels(request), GREEDY_TOKENS)
    assert ours.greedy(request, GREEDY_TOKENS) == answer
    assert len(set(answer)) > 8, "the test says little: the answer repeats itself"


@pytest.mark.parametrize("size", [(700, 460), (449, 448), (535, 448)])
def test_rows_of_crops_in_real_size(phi4_448: Path, size: tuple[int, int]) -> None:
    """Crops of 448 pixels and 32 x 32 patches. Those at the edge have 10 rows, one column alone, and 7 columns."""
    ours = subject(phi4_448)
    request = ours.request([{"role": "user", "content": [{"type": "image", "image": picture(*size, 1)}]}])
    (expected,) = oracle(phi4_448, True).rows([pixels_of(request.items[0], 448)])
    torch.testing.assert_close(ours.rows(request), expected, atol=TOLERANCE, rtol=0)


def test_the_adapter_is_for_requests_with_images(phi4: Path) -> None:
    """What the other tests rely on: with and without it answers differ. Red if a request has the wrong one."""
    ours = subject(phi4)
    text, seen = (ours.request(conversations()[name]) for name in ("text only", "image first"))
    assert (text.adapter, seen.adapter) == (-1, 0)
    for request in (text, seen):
        other = replace(request, adapter=-1 - request.adapter)
        expected = oracle(phi4, other.adapter >= 0).logits(request, pixels(request))
        torch.testing.assert_close(ours.logits(other), expected, atol=TOLERANCE, rtol=0)
        assert (ours.logits(request) - expected).abs().max() > 0.1


def test_a_tied_head(phi4: Path, tmp_path: Path) -> None:
    """As published: the embedding is the head, and is not stored again."""
    for file in phi4.iterdir():
        if file.name != "model.safetensors":
            (tmp_path / file.name).write_bytes(file.read_bytes())
    config = json.loads((phi4 / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": True}))
    stored = load_file(phi4 / "model.safetensors")
    del stored["lm_head.weight"]
    # Smaller than the model's own, so that logits are of the usual size.
    stored["model.embed_tokens.weight"] *= config["hidden_size"] ** -0.5
    save_file(stored, tmp_path / "model.safetensors")
    ours = subject(tmp_path)
    request = ours.request(conversations()["image first"])
    expected = oracle(tmp_path, True).logits(request, pixels(request))
    torch.testing.assert_close(ours.logits(request), expected, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("size", SIZES)
def test_rows_of_pictures_of_many_sizes(phi4: Path, size: tuple[int, int]) -> None:
    """Red if crops, their masks, what stands for padded patches, or the order of rows differ."""
    ours = subject(phi4)
    request = ours.request([{"role": "user", "content": [{"type": "image", "image": picture(*size, 1)}]}])
    (image,) = pixels(request)
    assert request.items[0].rows == image.num_tokens
    (expected,) = oracle(phi4, True).rows([image])
    torch.testing.assert_close(ours.rows(request), expected, atol=TOLERANCE, rtol=0)
