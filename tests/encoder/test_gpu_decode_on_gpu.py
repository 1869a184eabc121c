"""JPEGs decoded on a GPU: real files, turned and broken ones, memory, streams, through a whole engine."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

import file_patches
from assets import asset, asset_files
from encoder.jpegs import PROCESSOR, ask, holed, jpeg, pixels, ref, without_codes
from media.pictures import encoded, picture
from sightline import LLM, SamplingParams
from sightline.config import MediaConfig
from sightline.encoder.gpu_decode import GpuDecoder, GpuFiles
from sightline.encoder.jpeg_library import JpegLibrary, NvImageCodec, TorchvisionJpeg
from sightline.encoder.patch_maker import PatchMaker
from sightline.errors import ConfigError, MediaError
from sightline.media.decode import decode_image
from sightline.media.source import load_image
from sightline.timing import StageClock
from sightline.types import MediaRef

NEEDS_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")


@pytest.fixture(params=["nvimgcodec", "torchvision"])
def gpu_library(request: pytest.FixtureRequest) -> Iterator[JpegLibrary]:
    device = torch.device("cuda")
    try:
        made: JpegLibrary = NvImageCodec(device, 8) if request.param == "nvimgcodec" else TorchvisionJpeg(device)
    except ConfigError as error:
        pytest.skip(str(error))
    yield made
    made.close()


REAL = [path for case in asset_files("images/**/*.jp*g", "images/**/*.mpo") for path in case.values if path is not None]


def real_refs() -> list[MediaRef]:
    """Every real JPEG whose header can be read, broken ones among them."""
    asset("images")  # skips without them
    found = []
    for path in REAL:
        try:
            found.append(load_image(path, MediaConfig()))
        except MediaError:
            continue
    return found


@pytest.mark.gpu
@NEEDS_GPU
@pytest.mark.filterwarnings("ignore")
def test_gpu_pixels_of_real_files(gpu_library: JpegLibrary) -> None:
    """Interpolated chroma is within rounding of Pillow's; repeated chroma is not, but on the average near it."""
    decoder = GpuDecoder(gpu_library, torch.device("cuda"))
    refs = [one for one in real_refs() if GpuFiles().takes(one) and "hostile" not in one.source]
    assert len(refs) > 20
    found = pixels(decoder, refs)
    assert len(found) == len(refs) and decoder.failed == 0
    fancy = isinstance(gpu_library, NvImageCodec)
    for place, one in enumerate(refs):
        difference = np.abs(found[place].numpy() - decode_image(one).astype(np.int16))
        assert difference.mean() < (0.7 if fancy else 4.0), one.source
        if fancy:
            assert (difference > 8).mean() < 1e-4, one.source


@pytest.mark.gpu
@NEEDS_GPU
@pytest.mark.parametrize("subsampling", ["4:4:4", "4:2:2", "4:2:0"])
@pytest.mark.parametrize("progressive", [False, True])
def test_gpu_orientations(gpu_library: JpegLibrary, subsampling: str, progressive: bool) -> None:
    decoder = GpuDecoder(gpu_library, torch.device("cuda"))
    kind = {"subsampling": subsampling, "progressive": progressive, "quality": 90}
    refs = [ref(jpeg(80, 120, seed, orientation=seed % 8 + 1, **kind)) for seed in range(8)]
    refs += [ref(jpeg(80, 120, 9, mode="L", quality=90)), ref(jpeg(17, 1999, 10, **kind))]
    found = pixels(decoder, refs)
    assert sorted(found) == list(range(len(refs)))
    # Chroma that is repeated instead of interpolated is off at every edge of colour, of which these drawings have many.
    most = 3.0 if isinstance(gpu_library, NvImageCodec) or subsampling == "4:4:4" else 12.0
    for place, one in enumerate(refs):
        expected = decode_image(one).astype(np.int16)
        assert np.abs(found[place].numpy() - expected).mean() < most, place
        if place < 8:  # turned any other way it would be another picture
            assert np.abs(found[place].numpy() - expected[::-1, ::-1]).mean() > 3 * most, place


# Red if a broken file stops the process, fails its neighbours or changes their pixels.
@pytest.mark.gpu
@NEEDS_GPU
@pytest.mark.filterwarnings("ignore")
def test_gpu_broken_files_disturb_nobody(gpu_library: JpegLibrary) -> None:
    decoder = GpuDecoder(gpu_library, torch.device("cuda"))
    good = [ref(jpeg(200 + 8 * seed, 300, seed)) for seed in range(6)]
    alone = pixels(decoder, good)
    random = np.random.default_rng(0)
    bad = [one for one in real_refs() if "hostile" in one.source and GpuFiles().takes(one)]
    for seed in range(24):
        data = np.frombuffer(jpeg(160, 240, seed), np.uint8).copy()
        data[random.integers(700, len(data) - 2, 12)] = random.integers(0, 255, 12)
        bad.append(ref(data.tobytes()))
    bad += [ref(change(jpeg(240, 320, seed))) for seed in range(4) for change in (holed, without_codes)]
    bad = [one for one in bad if GpuFiles().takes(one)]
    assert len(bad) > 5
    for _ in range(3):
        order = random.permutation(len(good) + len(bad)).tolist()
        both = [*good, *bad]
        found = pixels(decoder, [both[number] for number in order])
        for place, number in enumerate(order):
            if number < len(good):
                assert place in found and torch.equal(found[place], alone[number])
    torch.cuda.synchronize()


# Red if memory of the device is lost with each batch, in torch or beside it.
@pytest.mark.gpu
@NEEDS_GPU
def test_gpu_memory_stays(gpu_library: JpegLibrary) -> None:
    decoder = GpuDecoder(gpu_library, torch.device("cuda"))
    refs = [ref(jpeg(960, 1280, seed % 3, quality=90)) for seed in range(12)] + [ref(holed(jpeg(960, 1280, 5)))]
    free = []
    for number in range(60):
        decoder.decode(refs)
        if number % 20 == 19:
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            free.append(torch.cuda.mem_get_info()[0])
    assert free[1] - free[2] < 64 * 1024**2


# Red if pixels are read before they are there, or written before the queue of the caller comes to it.
@pytest.mark.gpu
@NEEDS_GPU
def test_gpu_order_on_a_side_stream(gpu_library: JpegLibrary) -> None:
    decoder = GpuDecoder(gpu_library, torch.device("cuda"))
    refs = [ref(jpeg(480, 640, seed)) for seed in range(4)]
    expected = pixels(decoder, refs)
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    busy = torch.randn(4096, 4096, device="cuda")
    sums = []
    with torch.cuda.stream(side):
        for _ in range(10):
            for _ in range(4):
                busy = busy @ busy * 1e-4
            batch = decoder.decode(refs)[0]
            sums.append((batch.indices, batch.frames.clone()))
            del batch
    side.synchronize()
    for indices, frames in sums:
        for place, frame in zip(indices, frames.cpu(), strict=True):
            assert torch.equal(frame, expected[place])


@pytest.mark.gpu
@NEEDS_GPU
def test_gpu_patches_of_a_mixed_step(gpu_library, mixed) -> None:
    device, files = torch.device("cuda"), GpuFiles()
    decoder = GpuDecoder(gpu_library, device)
    good, pixels = [], []
    for one in mixed:
        try:
            pixels.append(None if files.takes(one.ref) else file_patches.decoded(one))
            good.append(one)
        except MediaError:
            continue
    found = PatchMaker(PROCESSOR, device, torch.bfloat16, True, decoder).make(good, pixels, StageClock())
    for one, of in zip(found, good, strict=True):
        spec = PROCESSOR.image if of.ref.kind == "image" else PROCESSOR.video
        try:
            other = file_patches.make_patches(of, spec, device, torch.bfloat16)
        except MediaError:
            assert one is None
            continue
        assert one is not None and one.shape == other.shape
        assert (one - other).float().abs().mean() < 0.05


@pytest.mark.gpu
@NEEDS_GPU
def test_gpu_engine_answers(tiny_checkpoints: dict[str, Path]) -> None:
    sampling = SamplingParams(max_tokens=4, temperature=0, ignore_eos=True)
    images = [encoded(picture("RGB", 200, 300, seed), "JPEG", subsampling="4:4:4") for seed in range(3)]
    with LLM(tiny_checkpoints["qwen3-vl"], device="cuda", image_decoder="gpu", kv_cache_gb=0.5) as llm:
        decoder = llm.engine.executor.worker.gpu_decoder
        assert decoder is not None
        assert len(llm.chat(ask(*images), sampling).token_ids) == 4
        assert decoder.failed == 0 and llm.engine.counts.decoded == 3
        with pytest.raises(MediaError):
            llm.chat(ask(images[0][:-200]), sampling)
