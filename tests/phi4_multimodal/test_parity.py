"""Prompts, embeddings, logits and greedy tokens equal transformers' on the same weights: without images those of the base
weights, with images those of weights that the adapter is merged into."""

from pathlib import Path

import pytest
import torch

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
    assert ours.greedy(request, GREEDY_TOKENS) == judge(phi4, request).greedy(request, pixels(request), GREEDY_TOKENS)


@pytest.mark.parametrize("size", SIZES)
def test_rows_of_pictures_of_many_sizes(phi4: Path, size: tuple[int, int]) -> None:
    """Red if crops, their masks, what stands for padded patches, or the order of rows differ."""
    ours = subject(phi4)
    request = ours.request([{"role": "user", "content": [{"type": "image", "image": picture(*size, 1)}]}])
    (image,) = pixels(request)
    assert request.items[0].rows == image.num_tokens
    (expected,) = oracle(phi4, True).rows([image])
    torch.testing.assert_close(ours.rows(request), expected, atol=TOLERANCE, rtol=0)
