"""From encoded bytes to patches, against transformers' Pillow-backed processors, from the same bytes."""

import io
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import torchvision_on_cpu
from assets import asset_files
from family_processors import make_processor, patch_spec
from file_patches import make_patches
from sightline.config import MediaConfig
from sightline.encoder import patches
from sightline.media.decode import decode_video
from sightline.media.item import item_of
from sightline.media.source import load_image, load_video
from sightline.ops.pixels import patchify

torchvision_on_cpu.declare_operators()
from transformers.image_utils import load_image as reference_image  # noqa: E402
from transformers.models.glm4v.image_processing_pil_glm4v import Glm4vImageProcessorPil  # noqa: E402
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil  # noqa: E402

CPU = torch.device("cpu")
NEEDS_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
DEVICES = ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, NEEDS_GPU])]
HALF = (0.5, 0.5, 0.5)
CLIP_MEAN, CLIP_STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
FAMILIES = {
    "qwen3-vl": patch_spec(65_536, 16_777_216, 16, HALF, HALF),
    "qwen2.5-vl": patch_spec(3136, 12_845_056, 14, CLIP_MEAN, CLIP_STD),
    "glm-4.1v": patch_spec(12_544, 9_633_792, 14, CLIP_MEAN, CLIP_STD),
}
# Ready-made files of every kind of pixel: the rest of the formats is tested where they are decoded.
REAL = asset_files(
    "images/formats/tv_gray_pytorch.jpg",
    "images/formats/tv_rgbalpha_pytorch.png",
    "images/formats/tv_palette_pytorch.png",
    "images/formats/tv_cmyk_pytorch.jpg",
    "images/formats/tv_rgb_pytorch16.png",
    "images/formats/pil_16bit.cropped.tif",
    "images/formats/pil_orientation_rectangle.jpg",
    "images/formats/pil_hopper_orientation_6.webp",
    "images/shapes/sg_wide.jpg",
    "images/photos/sk_coffee.png",
)


def processor(family: str):
    spec = FAMILIES[family]
    common = {"patch_size": spec.patch_size, "image_mean": list(spec.mean), "image_std": list(spec.std)}
    if family == "glm-4.1v":
        return Glm4vImageProcessorPil(size={"shortest_edge": spec.min_pixels, "longest_edge": spec.max_pixels}, **common)
    return Qwen2VLImageProcessorPil(min_pixels=spec.min_pixels, max_pixels=spec.max_pixels, **common)


def check(path: Path, family: str, device: str = "cpu") -> None:
    spec = FAMILIES[family]
    expected = processor(family)(reference_image(str(path)), return_tensors="pt")
    item = item_of(load_image(path, MediaConfig()), make_processor(family, spec))
    assert [list(item.grid)] == expected["image_grid_thw"].tolist()
    full = make_patches(item, spec, torch.device(device), torch.float32, compact=False)
    assert full.device.type == device and torch.equal(full.cpu(), expected["pixel_values"])
    compact = make_patches(item, spec, torch.device(device), torch.float32)
    assert torch.equal(compact.cpu(), expected["pixel_values"].view(len(full), 3, 2, -1)[:, :, 0].flatten(1))


def made_picture(mode: str, height: int, width: int) -> Image.Image:
    """Soft colours with sharp edges, so that every step of the way shows."""
    y, x = np.mgrid[:height, :width]
    channels = [(x * 3 + y) % 256, (y * 2) % 256, ((x // 7 + y // 5) % 2) * 255]
    colours = Image.fromarray(np.stack(channels, axis=-1).astype(np.uint8))
    if mode == "I;16":
        return Image.fromarray(((x * 131 + y * 17) % 65536).astype(np.uint16))
    if mode == "RGBA":
        colours.putalpha(Image.fromarray(((x + y) % 256).astype(np.uint8)))
        return colours
    return colours.quantize(64) if mode == "P" else colours.convert(mode)


# Red if any step (decoding, orientation, size, resize, normalisation, order) departs from transformers.
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    ("mode", "file_format", "height", "width", "orientation"),
    [
        ("RGB", "JPEG", 123, 211, 1),
        ("RGB", "JPEG", 300, 97, 6),
        ("L", "PNG", 64, 64, 1),
        ("RGBA", "PNG", 90, 333, 1),
        ("P", "PNG", 250, 30, 8),
        ("CMYK", "JPEG", 100, 100, 3),
        ("I;16", "PNG", 77, 131, 1),
        ("RGB", "WEBP", 10, 900, 1),
        ("RGB", "PNG", 5, 3, 1),
    ],
)
def test_images(mode, file_format, height, width, orientation, family, device, tmp_path) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = tmp_path / "picture"
    made_picture(mode, height, width).save(path, file_format, exif=exif)
    check(path, family, device)


@pytest.mark.filterwarnings("ignore:Palette images")
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("path", REAL)
def test_real_images(path: Path, family: str) -> None:
    check(path, family)


# Red if an image object goes another way than its file.
def test_image_objects() -> None:
    buffer = io.BytesIO()
    made_picture("RGB", 60, 80).save(buffer, "PNG")
    spec = FAMILIES["qwen3-vl"]
    ways = [load_image(source, MediaConfig()) for source in (buffer.getvalue(), Image.open(buffer))]
    first, second = (make_patches(item_of(ref, make_processor("qwen3-vl", spec)), spec, CPU, torch.float32) for ref in ways)
    assert torch.equal(first, second)


# ---- Videos


def made_video(frames: int) -> bytes:
    import av

    buffer = io.BytesIO()
    with av.open(buffer, "w", format="matroska") as output:
        stream = output.add_stream("ffv1", rate=4)
        stream.width, stream.height, stream.pix_fmt = 70, 50, "bgr0"
        for index in range(frames):
            picture = np.roll(np.asarray(made_picture("RGB", 50, 70)), 5 * index, axis=1)
            output.mux(stream.encode(av.VideoFrame.from_ndarray(np.ascontiguousarray(picture), format="rgb24")))
        output.mux(stream.encode())
    return buffer.getvalue()


# Red if frames are lost or mixed when a clip is uploaded in several groups, or if a video's patches are compacted. The
# expectation resizes frame by frame with Pillow.
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("group_bytes", [1, 70 * 50 * 3 * 5, 1 << 30])
@pytest.mark.parametrize("frames", [1, 2, 9, 14])
@pytest.mark.parametrize("family", FAMILIES)
def test_videos(family, frames, group_bytes, device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patches, "GROUP_BYTES", group_bytes)
    spec = patch_spec(4096, 100_000, 14, CLIP_MEAN, CLIP_STD)
    item = item_of(load_video(made_video(frames), MediaConfig()), make_processor(family, spec))
    height, width = item.resized
    resized = [
        Image.fromarray(frame).resize((width, height), Image.Resampling.BICUBIC)
        for frame in decode_video(item.ref, item.frame_indices)
    ]
    stack = torch.from_numpy(np.stack([np.asarray(frame) for frame in resized]))
    expected = patchify(stack, spec.mean, spec.std, 14, 2, 2, False, torch.float32)
    found = make_patches(item, spec, torch.device(device), torch.float32)
    assert found.shape == (item.patches, 3 * 2 * 14 * 14)
    assert torch.equal(found.cpu(), expected)
