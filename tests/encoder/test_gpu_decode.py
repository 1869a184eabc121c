"""JPEGs decoded by a library for GPUs mean what Pillow's mean. nvidia-nvimgcodec also decodes on a CPU, by which all of the way
is tested without a GPU; what only a GPU shows is marked."""

import io
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from PIL import Image

import file_patches
from encoder.jpegs import (
    CPU,
    PROCESSOR,
    Counting,
    ask,
    item,
    jpeg,
    pixels,
    ref,
    soft,
    without_codes,
)
from encoder.test_patches import made_video
from media.pictures import encoded
from sightline import LLM, SamplingParams
from sightline.config import MediaConfig
from sightline.encoder import gpu_decode, patches
from sightline.encoder.gpu_decode import GpuDecoder, GpuFiles, choose_gpu_decoder, probe
from sightline.encoder.jpeg_library import JpegLibrary
from sightline.encoder.patch_maker import PatchMaker
from sightline.errors import ConfigError, MediaError
from sightline.media.decode import decode_image
from sightline.media.source import load_video
from sightline.timing import StageClock
from sightline.types import ImageHeader, MediaRef
from sightline.worker import build


def test_the_cpu_is_chosen_without_a_gpu() -> None:
    assert choose_gpu_decoder("cpu", CPU, 1) is None
    assert choose_gpu_decoder("auto", CPU, 1) is None
    with pytest.raises(ConfigError, match="image_decoder is 'gpu', but the model runs on cpu"):
        choose_gpu_decoder("gpu", CPU, 1)


def test_an_engine_on_a_cpu_refuses_the_gpu(tiny_checkpoints: dict[str, Path]) -> None:
    with pytest.raises(ConfigError, match="image_decoder is 'gpu'"):
        LLM(tiny_checkpoints["qwen3-vl"], device="cpu", image_decoder="gpu")


class Nearest:
    """As a library that repeats chroma; or, with `broken`, one that decodes nothing."""

    name = "nearest"

    def __init__(self, device: torch.device, threads: int = 1, broken: bool = False) -> None:
        self._broken, self.closed = broken, False

    def decode(self, files: Sequence[bytes], into: Sequence[torch.Tensor]) -> list[bool]:
        for data, target in zip(files, into, strict=True):
            luma, *chroma = Image.open(io.BytesIO(data)).convert("YCbCr").split()
            half = [one.resize((one.width // 2, one.height // 2), Image.Resampling.BOX) for one in chroma]
            merged = Image.merge("YCbCr", [luma, *(one.resize(luma.size, Image.Resampling.NEAREST) for one in half)])
            target.copy_(torch.from_numpy(np.array(merged.convert("RGB"))))
        return [not self._broken] * len(files)

    def close(self) -> None:
        self.closed = True


# Red if 'auto' takes a decoder whose pixels are others, or if 'gpu' names no reason. The device is only named here, not used.
def test_auto_wants_interpolated_chroma(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = torch.device("cuda")
    real_probe = probe
    monkeypatch.setattr(gpu_decode, "probe", lambda library, device: real_probe(library, CPU))
    monkeypatch.setattr(gpu_decode, "NvImageCodec", Nearest)
    assert choose_gpu_decoder("auto", cuda, 1) is None
    chosen = choose_gpu_decoder("gpu", cuda, 1)
    assert chosen is not None and chosen.name == "nearest"

    def missing(*_: object) -> JpegLibrary:
        raise ConfigError("nvidia-nvimgcodec cannot be loaded: No module named 'nvidia'.")

    monkeypatch.setattr(gpu_decode, "NvImageCodec", missing)
    assert choose_gpu_decoder("auto", cuda, 1) is None
    monkeypatch.setattr(gpu_decode, "TorchvisionJpeg", Nearest)
    chosen = choose_gpu_decoder("gpu", cuda, 1)
    assert chosen is not None and chosen.name == "nearest"
    monkeypatch.setattr(gpu_decode, "TorchvisionJpeg", lambda device: Nearest(device, broken=True))
    with pytest.raises(ConfigError, match="No module named 'nvidia'; nearest cannot decode a JPEG here"):
        choose_gpu_decoder("gpu", cuda, 1)


def test_the_library_interpolates_chroma(library: Counting) -> None:
    assert probe(library, CPU) <= 2
    assert probe(Nearest(CPU), CPU) > 20


# ---- Which files


# Red if a file of many scans, which the host decodes in the midst of a step, goes to the GPU.
def test_the_gpu_gets_no_files_of_many_scans() -> None:
    data = jpeg(1000, 1000, progressive=True)
    header = ref(data).header
    assert isinstance(header, ImageHeader) and header.scans == 10
    assert gpu_decode._is_for_gpu(data, header)
    assert gpu_decode._is_for_gpu(data, msgspec.structs.replace(header, scans=32))
    assert not gpu_decode._is_for_gpu(data, msgspec.structs.replace(header, scans=33))


def test_what_the_gpu_takes() -> None:
    decoder = GpuFiles()
    assert decoder.takes(ref(jpeg())) and decoder.takes(ref(jpeg(mode="L"))) and decoder.takes(ref(jpeg(progressive=True)))
    for orientation in range(1, 9):
        assert decoder.takes(ref(jpeg(orientation=orientation)))
    for data in (
        jpeg(mode="CMYK"),
        jpeg(height=15),
        encoded(soft(80, 120), "PNG"),
        encoded(soft(80, 120), "WEBP"),
        jpeg()[:-20],
    ):
        assert not decoder.takes(ref(data))
    seen = ref(jpeg())
    by_digest = MediaRef("image", b"", seen.digest, seen.header, "")
    assert decoder.takes(by_digest) and not GpuFiles().takes(by_digest)  # as when its bytes were here, if they ever were
    assert not decoder.takes(load_video(made_video(4), MediaConfig()))


def test_large_pictures_are_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_decode, "MOST_PIXELS", 80 * 120)
    decoder = GpuFiles()
    assert decoder.takes(ref(jpeg(80, 120))) and not decoder.takes(ref(jpeg(80, 121)))


# ---- Pixels


# Red if a turn is forgotten or wrong, if grey stays one channel, or if pictures of a batch change places.
@pytest.mark.parametrize("kind", [{}, {"mode": "L"}, {"subsampling": "4:4:4"}, {"subsampling": "4:2:2"}, {"progressive": True}])
def test_pixels_are_those_of_pillow(library: Counting, kind: dict[str, object]) -> None:
    decoder = GpuDecoder(library, CPU)
    refs = [ref(jpeg(80, 120, seed, orientation=seed % 8 + 1, **kind)) for seed in range(16)]
    refs += [ref(jpeg(33, 47, 20, **kind))]
    found = pixels(decoder, refs)
    assert library.calls == [17] and sorted(found) == list(range(17))
    for place, one in enumerate(refs):
        expected = decode_image(one).astype(np.int16)
        assert found[place].shape == expected.shape
        assert np.abs(found[place].numpy() - expected).max() <= 2


# Red if a file that the library cannot decode disturbs those beside it, or is not said to be left to Pillow.
def test_what_the_library_cannot_do_is_left_to_pillow(library: Counting) -> None:
    decoder = GpuDecoder(library, CPU)
    files = [jpeg(seed=1), jpeg(seed=2), without_codes(jpeg(seed=3)), jpeg(seed=4)]
    items = [item(data) for data in files]
    library.refused.add(files[1])
    assert all(GpuFiles().takes(one.ref) for one in items)
    found = PatchMaker(PROCESSOR, CPU, torch.float32, True, decoder).make(items, [None] * 4, StageClock())
    assert library.calls == [4] and decoder.failed == 2
    assert found[1] is None and found[2] is None
    for place in (0, 3):
        assert (
            found[place] - file_patches.make_patches(items[place], PROCESSOR.image, CPU, torch.float32)
        ).abs().max() <= 2 / 127.5


# ---- Patches of a step


# Red if an item gets the patches or the error of another, in one group or in several, compact or not.
@pytest.mark.parametrize("compact", [True, False])
@pytest.mark.parametrize(("group_bytes", "calls"), [(1 << 28, [5]), (80 * 120 * 3 * 2, [2, 2, 1]), (1, [1] * 5)])
def test_a_mixed_step(library, mixed, compact, group_bytes, calls, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patches, "GROUP_BYTES", group_bytes)
    clock, files = StageClock(), GpuFiles()
    pixels, good = [], []
    for one in mixed:
        try:
            pixels.append(None if files.takes(one.ref) else file_patches.decoded(one))
            good.append(one)
        except MediaError:
            continue
    assert len(good) < len(mixed)
    found = PatchMaker(PROCESSOR, CPU, torch.float32, compact, GpuDecoder(library, CPU)).make(good, pixels, clock)
    assert library.calls == calls
    assert clock.seconds["decode"] > 0 and clock.seconds["preprocess"] > 0
    for one, of in zip(found, good, strict=True):
        spec = PROCESSOR.image if of.ref.kind == "image" else PROCESSOR.video
        try:
            other = file_patches.make_patches(of, spec, CPU, torch.float32, compact)
        except MediaError:  # the GPU cannot decode it either
            assert one is None
            continue
        assert one is not None and one.shape == other.shape and len(one) == of.patches
        assert (one - other).abs().max() <= 2 / 127.5


# ---- In the engine


# Red if answers change, images are counted wrongly, rows of one decoder are found by the other, or the library is left open.
def test_an_engine_with_such_a_decoder(library: Counting, tiny_checkpoints, monkeypatch: pytest.MonkeyPatch) -> None:
    sampling = SamplingParams(max_tokens=4, temperature=0, ignore_eos=True)
    images = [jpeg(80, 120, 1), jpeg(80, 120, 2), encoded(soft(64, 64, 3), "PNG")]
    some = item(images[0])
    with LLM(tiny_checkpoints["qwen3-vl"], device="cpu") as llm:
        expected = llm.chat(ask(*images), sampling).token_ids
        plain_key = llm.engine.encoder.embedding_key(some)
    closed = []
    library.close = lambda: closed.append(True)  # type: ignore[method-assign]
    monkeypatch.setattr(build, "choose_gpu_decoder", lambda *_: GpuDecoder(library, CPU))
    with LLM(tiny_checkpoints["qwen3-vl"], device="cpu") as llm:
        assert llm.chat(ask(*images), sampling).token_ids == expected
        assert library.calls == [2] and llm.engine.counts.decoded == 3
        assert llm.chat(ask(*images), sampling).token_ids == expected and library.calls == [2]  # cached
        assert llm.engine.encoder.embedding_key(some) != plain_key
        with pytest.raises(MediaError):
            llm.chat(ask(jpeg(80, 120, 4)[:-300]), sampling)
    assert closed == [True]
