"""Resized pixels against Pillow, patches against transformers' Pillow-backed processors: equal to the last bit."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import torchvision_on_cpu
from sightline.media.pillow import rows_first
from sightline.ops import pixels
from sightline.ops.pixels import patchify, resize_bicubic, resize_bilinear

torchvision_on_cpu.declare_operators()
from transformers import Qwen3VLVideoProcessor  # noqa: E402
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil  # noqa: E402

NEEDS_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
DEVICES = ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, NEEDS_GPU])]
CLIP_MEAN, CLIP_STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
SIZES = [  # height, width -> height, width
    ((720, 1280), (704, 1280)),
    ((1080, 1920), (1088, 1920)),
    ((1080, 1920), (728, 1288)),
    ((427, 640), (448, 640)),
    ((480, 639), (480, 640)),
    ((640, 427), (640, 420)),
    ((560, 560), (576, 576)),
    ((333, 500), (1024, 1536)),
    ((1365, 2048), (224, 336)),
    ((2400, 1080), (1120, 504)),  # rows first
    ((3000, 64), (96, 256)),  # rows first, and wider
    ((64, 3000), (256, 96)),
    ((1, 1), (28, 28)),
    ((2, 3), (64, 96)),
    ((3, 2), (1, 1)),
    ((1, 200), (28, 1120)),
    ((100, 100), (99, 98)),  # a tie between the orders
    ((37, 41), (37, 41)),
]


def noise(frames: int, height: int, width: int, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).integers(0, 256, (frames, height, width, 3), dtype=np.uint8))


def pillow_resize(image: torch.Tensor, height: int, width: int) -> torch.Tensor:
    made = Image.fromarray(image.numpy())
    return torch.from_numpy(np.array(made.resize((width, height), Image.Resampling.BICUBIC)))


def our_resize(images: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """In the order of the installed Pillow."""
    return resize_bicubic(images, height, width, rows_first(images.shape[1], images.shape[2], height, width))


# Red if weights are rounded another way, intermediate pixels are not rounded to uint8, overshoot is not clipped, or the passes
# change places. Black-and-white noise overshoots most.
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("old", "new"), SIZES)
def test_resize_is_pillows(old: tuple[int, int], new: tuple[int, int], device: str) -> None:
    for image in (noise(1, *old), (noise(1, *old, seed=1) > 127).to(torch.uint8) * 255):
        found = our_resize(image.to(device), *new)
        assert int((found[0].cpu() != pillow_resize(image[0], *new)).sum()) == 0


@settings(max_examples=400, deadline=None)
@given(st.integers(1, 90), st.integers(1, 90), st.integers(1, 120), st.integers(1, 120), st.integers(0, 2**32 - 1))
def test_resize_of_small_pictures(height: int, width: int, new_height: int, new_width: int, seed: int) -> None:
    image = noise(1, height, width, seed)
    assert torch.equal(our_resize(image, new_height, new_width)[0], pillow_resize(image[0], new_height, new_width))


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 90), st.integers(1, 90), st.integers(1, 120), st.integers(1, 120), st.integers(0, 2**32 - 1))
def test_bilinear_resize_is_pillows(height: int, width: int, new_height: int, new_width: int, seed: int) -> None:
    image = noise(1, height, width, seed)
    order = rows_first(height, width, new_height, new_width)
    expected = Image.fromarray(image[0].numpy()).resize((new_width, new_height), Image.Resampling.BILINEAR)
    found = resize_bilinear(image, new_height, new_width, order)[0]
    assert torch.equal(found, torch.from_numpy(np.array(expected)))


# Red if frames mix, or if the cut into chunks loses or doubles a line.
@pytest.mark.parametrize("chunk", [1, 100, 1000, 5000, 1 << 18])
def test_resize_of_several_frames_in_chunks(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(pixels._CHUNK_VALUES, "cpu", chunk)
    images = noise(5, 23, 31)
    found = our_resize(images, 28, 17)
    assert torch.equal(found, torch.stack([pillow_resize(image, 28, 17) for image in images]))


# Red if weights are not normalised, or a pixel has none: brightness would change.
@pytest.mark.parametrize(("old", "new"), [(10, 10), (720, 704), (5, 1000), (1000, 5), (1, 7), (4096, 1)])
def test_weights_sum_to_one(old: int, new: int) -> None:
    starts, weights = pixels.resize_taps(old, new, "bicubic")
    assert starts.min() >= 0 and (weights != 0).any(axis=0).all()
    assert np.abs(weights.sum(axis=0, dtype=np.int64) - (1 << 22)).max() <= len(weights) / 2


@pytest.mark.parametrize(
    "images",
    [torch.zeros(2, 4, 4, 1, dtype=torch.uint8), torch.zeros(4, 4, 3, dtype=torch.uint8), torch.zeros(1, 4, 4, 3)],
)
def test_other_tensors_are_refused(images: torch.Tensor) -> None:
    with pytest.raises(ValueError, match=r"images must be uint8 \[frames, height, width, 3\]"):
        our_resize(images, 8, 8)


# ---- Patches


# Red if normalisation is computed in another order, or rows or features are in another order.
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("mean", "std"), [(CLIP_MEAN, CLIP_STD), ((0.5,) * 3, (0.5,) * 3)])
@pytest.mark.parametrize(
    ("patch", "merge", "height", "width"), [(14, 2, 56, 84), (16, 2, 96, 64), (16, 2, 32, 32), (8, 4, 64, 96)]
)
def test_patches_of_stills_are_transformers(patch, merge, height, width, mean, std, device) -> None:
    images = torch.arange(height * width * 3).mul(37).remainder(256).to(torch.uint8).view(1, height, width, 3)
    processor = Qwen2VLImageProcessorPil(patch_size=patch, merge_size=merge, image_mean=list(mean), image_std=list(std))
    made = processor(Image.fromarray(images[0].numpy()), do_resize=False, return_tensors="pt")
    expected = made["pixel_values"]
    full = patchify(images.to(device), mean, std, patch, 2, merge, False, torch.float32).cpu()
    assert torch.equal(full, expected)
    compact = patchify(images.to(device), mean, std, patch, 2, merge, True, torch.float32).cpu()
    assert torch.equal(compact, expected.view(-1, 3, 2, patch * patch)[:, :, 0].flatten(1))
    half = patchify(images.to(device), mean, std, patch, 2, merge, True, torch.bfloat16).cpu()
    assert torch.equal(half, compact.to(torch.bfloat16))


# Red if time and space are mixed up. transformers normalises videos in another order of operations: a last bit may differ.
def test_patches_of_videos_are_transformers() -> None:
    frames = noise(6, 64, 96)
    processor = Qwen3VLVideoProcessor()
    made = processor(
        videos=[frames.permute(0, 3, 1, 2)],
        do_resize=False,
        do_sample_frames=False,
        cap_pixels_per_frame=False,
        return_tensors="pt",
    )
    assert made["video_grid_thw"].tolist() == [[3, 4, 6]]
    found = patchify(frames, (0.5,) * 3, (0.5,) * 3, 16, 2, 2, False, torch.float32)
    torch.testing.assert_close(found, made["pixel_values_videos"], rtol=0, atol=1e-6)
    assert torch.equal(found.to(torch.bfloat16), made["pixel_values_videos"].to(torch.bfloat16))


def test_frames_that_make_no_patches_are_refused() -> None:
    mean = std = (0.5, 0.5, 0.5)
    with pytest.raises(ValueError, match="3 frames do not make patches of 2 frames"):
        patchify(noise(3, 32, 32), mean, std, 16, 2, 2, False, torch.float32)
    with pytest.raises(ValueError, match=r"2 frames do not make patches of 2 frames \(compact=True\)"):
        patchify(noise(2, 32, 32), mean, std, 16, 2, 2, True, torch.float32)
    with pytest.raises(ValueError, match="frames of 48x32 pixels do not divide into 2x2 patches of 16"):
        patchify(noise(1, 32, 48), mean, std, 16, 2, 2, True, torch.float32)
