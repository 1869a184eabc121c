"""Pictures and embeddings that come as numbers become what a file with the same numbers would."""

import numpy as np
import pytest
import torch
from PIL import Image

from sightline.config import MediaConfig
from sightline.errors import MediaError
from sightline.media.arrays import ImageEmbeddings
from sightline.media.decode import decode_image
from sightline.media.source import load_image

LIMITS = MediaConfig()
PIXELS = np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=np.uint8)


@pytest.mark.parametrize(
    "source",
    [
        PIXELS,
        PIXELS.transpose(2, 0, 1),
        PIXELS[:, ::-1][:, ::-1],
        torch.from_numpy(PIXELS.copy()),
        torch.from_numpy(PIXELS.copy()).permute(2, 0, 1),
    ],
    ids=["channels last", "channels first", "strided", "tensor", "tensor, channels first"],
)
def test_an_array_is_the_picture_with_its_pixels(source: object) -> None:
    """Red if channels are taken for rows, if strides are ignored, or if the digest is another than the PIL image's."""
    found, expected = load_image(source, LIMITS), load_image(Image.fromarray(PIXELS), LIMITS)
    assert (found.digest, found.header) == (expected.digest, expected.header)
    assert (decode_image(found) == PIXELS).all()


def test_other_channels() -> None:
    """Red if grey becomes another colour, or if alpha is not dropped as from a PIL image."""
    grey = load_image(PIXELS[:, :, 0], LIMITS)
    assert (decode_image(grey) == PIXELS[:, :, :1]).all()
    assert load_image(PIXELS[:, :, :1], LIMITS).digest == grey.digest
    alpha = np.concatenate((PIXELS, PIXELS[:, :, :1]), 2)
    assert load_image(alpha, LIMITS).digest == load_image(Image.fromarray(alpha), LIMITS).digest


def test_three_by_three_is_read_by_its_kind() -> None:
    """Red if an array of 3 x n x 3 is turned: numpy has channels last, torch first."""
    square = PIXELS[:3]
    as_array, as_tensor = load_image(square, LIMITS), load_image(torch.from_numpy(square.copy()), LIMITS)
    assert (as_array.header.width, as_array.header.height) == (7, 3)
    assert (as_tensor.header.width, as_tensor.header.height) == (3, 7)


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (np.zeros((4, 4, 3)), "must be of uint8, not [4, 4, 3] of float64"),
        (torch.zeros(3, 4, 4, dtype=torch.bfloat16), "must be of uint8, not [3, 4, 4] of torch.bfloat16"),
        (np.zeros((5, 4, 2), np.uint8), "must have height, width and 1, 3 or 4 channels, not [5, 4, 2] of uint8"),
        (np.zeros((0, 4, 3), np.uint8), "not [0, 4, 3] of uint8"),
        (np.zeros((2, 3, 4, 4), np.uint8), "not [2, 3, 4, 4] of uint8"),
    ],
)
def test_what_is_no_picture_is_refused(source: object, said: str) -> None:
    with pytest.raises(MediaError, match=said.replace("[", r"\[").replace("]", r"\]")):
        load_image(source, LIMITS)


def test_the_size_limits_hold_for_arrays() -> None:
    """Red if arrays pass by the limits of files."""
    with pytest.raises(MediaError, match="--max-image-pixels"):
        load_image(PIXELS, MediaConfig(max_image_pixels=20))


def test_embeddings_differ_by_all_that_they_say() -> None:
    """Red if size, dtype or shape is left out of the digest: another's rows would be found."""
    rows = np.arange(24, dtype=np.float32).reshape(4, 6)
    first = ImageEmbeddings.of(rows, width=8, height=8)
    others = [
        ImageEmbeddings.of(rows.reshape(6, 4), width=8, height=8),
        ImageEmbeddings.of(rows, width=4, height=16),
        ImageEmbeddings(first.data, "bfloat16", (8, 6), 8, 8),
        ImageEmbeddings.of(-rows, width=8, height=8),
    ]
    digests = {load_image(given, LIMITS).digest for given in [first, *others]}
    assert len(digests) == 5
    assert load_image(ImageEmbeddings.of(torch.from_numpy(rows), width=8, height=8), LIMITS).digest in digests


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            ImageEmbeddings(bytes(16), "int32", (2, 2), 8, 8),
            "are of 'int32'; they must be of one of float32,",
        ),
        (ImageEmbeddings(bytes(15), "float32", (2, 2), 8, 8), "have 15 bytes; .2, 2. numbers of float32 are 16"),
        (ImageEmbeddings(b"", "float32", (0, 2), 8, 8), "have 0 bytes"),
        (ImageEmbeddings(b"\x80\x7f" * 4, "bfloat16", (2, 2), 8, 8), "not finite"),
        (ImageEmbeddings(np.full(4, np.nan, "<f2").tobytes(), "float16", (2, 2), 8, 8), "not finite"),
        (ImageEmbeddings(bytes(16), "float32", (2, 2), 10**6, 10**6), "--max-image-pixels"),
        (ImageEmbeddings(bytes(2_000_000), "float32", (500, 1000), 8, 8), "--max-image-mb"),
    ],
)
def test_embeddings_that_cannot_be_are_refused(given: ImageEmbeddings, said: str) -> None:
    with pytest.raises(MediaError, match=said):
        load_image(given, MediaConfig(max_image_mb=1))
    with pytest.raises(MediaError, match="floating-point"):
        ImageEmbeddings.of(np.zeros((2, 2), np.int64), width=8, height=8)
