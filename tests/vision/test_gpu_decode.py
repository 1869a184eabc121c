"""JPEGs decoded by a library for GPUs mean what Pillow's mean. nvidia-nvimgcodec also decodes on a CPU, by which all of the way
is tested without a GPU; what only a GPU shows is marked."""

import io
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from assets import asset_files, folder
from media.pictures import encoded, picture
from sightline import LLM, SamplingParams
from sightline.bench.load.images import photo
from sightline.config import MediaConfig
from sightline.engine import parts as engine_parts
from sightline.errors import ConfigError, MediaError
from sightline.media.decode import decode_image
from sightline.media.item import make_image_item, make_video_item
from sightline.media.source import load_image, load_video
from sightline.spec import ImageSpec, ProcessorSpec, VideoSpec
from sightline.timing import StageClock
from sightline.types import MediaItem, MediaRef
from sightline.vision import gpu_decode, patches
from sightline.vision.gpu_decode import GpuDecoder, choose_gpu_decoder, probe
from sightline.vision.jpeg_library import JpegLibrary, NvImageCodec, TorchvisionJpeg
from sightline.vision.patch_maker import PatchMaker
from vision.test_patches import made_video

CPU = torch.device("cpu")
HALF = (0.5, 0.5, 0.5)
IMAGE = ImageSpec(4096, 16_777_216, "per_image", 16, 2, 2, HALF, HALF)
VIDEO = VideoSpec("qwen3", 4096, 100_000, 2.0, 4, 768, 300.0, 16, 2, 2, HALF, HALF, 2.0)
PROCESSOR = ProcessorSpec(image=IMAGE, video=VIDEO)
NEEDS_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")


class Counting:
    """A library, and how many files each of its calls had. Files in `refused` it decodes, but says that it could not."""

    def __init__(self, library: JpegLibrary) -> None:
        self._library, self.calls, self.refused = library, list[int](), set[bytes]()
        self.name = library.name

    def decode(self, files: Sequence[bytes], into: Sequence[torch.Tensor]) -> list[bool]:
        self.calls.append(len(files))
        done = self._library.decode(files, into)
        return [one and data not in self.refused for one, data in zip(done, files, strict=True)]

    def close(self) -> None:
        self._library.close()


@pytest.fixture
def library() -> Iterator[Counting]:
    pytest.importorskip("nvidia.nvimgcodec", reason="needs nvidia-nvimgcodec")
    made = Counting(NvImageCodec(CPU, threads=2))
    yield made
    made.close()


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as made:
        yield made


def soft(height: int, width: int, seed: int = 0) -> Image.Image:
    return Image.fromarray(photo(np.random.default_rng(seed), width, height))


def jpeg(
    height: int = 80, width: int = 120, seed: int = 0, mode: str = "RGB", orientation: int = 1, **options: object
) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return encoded(soft(height, width, seed).convert(mode), "JPEG", exif=exif, **options)


def ref(data: bytes) -> MediaRef:
    return load_image(data, MediaConfig())


def item(data: bytes) -> MediaItem:
    return make_image_item(ref(data), IMAGE)


def pixels(decoder: GpuDecoder, refs: Sequence[MediaRef]) -> dict[int, torch.Tensor]:
    return {
        place: frame.cpu() for batch in decoder.decode(refs) for place, frame in zip(batch.places, batch.frames, strict=True)
    }


# ---- Which decoder


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


def test_what_the_gpu_takes(library: Counting) -> None:
    decoder = GpuDecoder(library, CPU)
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
    nameless = ref(jpeg())
    assert not decoder.takes(MediaRef("image", b"", nameless.digest, nameless.header, ""))
    assert not decoder.takes(load_video(made_video(4), MediaConfig()))


def test_large_pictures_are_not_taken(library: Counting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_decode, "MOST_PIXELS", 80 * 120)
    decoder = GpuDecoder(library, CPU)
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


def holed(data: bytes) -> bytes:
    """A file whose pixels end half-way, with its end marker: Pillow shows half a picture."""
    return data[: len(data) // 2].rstrip(b"\xff") + b"\xff\xd9"


def without_codes(data: bytes) -> bytes:
    """A file whose first table of codes makes no sense: nobody can decode it."""
    table = data.index(b"\xff\xc4")
    return data[: table + 5] + b"\xff" * 4 + data[table + 9 :]


# Red if a file that the library cannot decode is not given to Pillow, or disturbs those beside it.
def test_pillow_decides_what_the_library_cannot_do(library: Counting, threads: ThreadPoolExecutor) -> None:
    decoder = GpuDecoder(library, CPU)
    files = [jpeg(seed=1), jpeg(seed=2), without_codes(jpeg(seed=3)), jpeg(seed=4)]
    items = [item(data) for data in files]
    library.refused.add(files[1])
    assert all(decoder.takes(one.ref) for one in items)
    with_gpu, now = PatchMaker(PROCESSOR, CPU, torch.float32, True, threads, decoder).make(items, StageClock())
    without, _ = PatchMaker(PROCESSOR, CPU, torch.float32, True, threads).make(items, StageClock())
    assert library.calls == [4] and decoder.failed == 2 and now == 4
    assert isinstance(with_gpu[2], MediaError) and str(with_gpu[2]) == str(without[2])
    for place in (0, 1, 3):
        one, other = with_gpu[place], without[place]
        assert isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor)
        assert (one - other).abs().max() <= 2 / 127.5


# ---- Patches of a step


@pytest.fixture
def mixed() -> list[MediaItem]:
    files = [
        jpeg(80, 120, 1),
        encoded(soft(64, 64, 2), "PNG"),
        jpeg(80, 120, 3),
        jpeg(100, 60, 4, orientation=6),
        jpeg(70, 70, 5, mode="CMYK"),
        jpeg(80, 120, 6)[:-400],  # cut off
        jpeg(80, 120, 7),
        without_codes(jpeg(96, 96, 8)),
    ]
    missing = item(jpeg(60, 60, 9))
    missing = MediaItem(
        MediaRef("image", b"", missing.ref.digest, missing.ref.header, "gone.jpg"),
        missing.key, missing.grid, missing.resized, (), (), missing.rows,
    )  # fmt: skip
    return [*(item(data) for data in files), missing, make_video_item(load_video(made_video(5), MediaConfig()), VIDEO)]


# Red if an item gets the patches or the error of another, in one group or in several, compact or not.
@pytest.mark.parametrize("compact", [True, False])
@pytest.mark.parametrize(("group_bytes", "calls"), [(1 << 28, [5]), (80 * 120 * 3 * 2, [2, 2, 1]), (1, [1] * 5)])
def test_a_mixed_step(library, threads, mixed, compact, group_bytes, calls, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patches, "GROUP_BYTES", group_bytes)
    clock = StageClock()
    decoder = GpuDecoder(library, CPU)
    found, now = PatchMaker(PROCESSOR, CPU, torch.float32, compact, threads, decoder).make(mixed, clock)
    expected, _ = PatchMaker(PROCESSOR, CPU, torch.float32, compact, threads).make(mixed, StageClock())
    assert library.calls == calls and now == len(mixed) - 1
    assert clock.seconds["decode"] > 0 and clock.seconds["preprocess"] > 0
    errors = 0
    for one, other, of in zip(found, expected, mixed, strict=True):
        if isinstance(other, MediaError):
            errors += 1
            assert isinstance(one, MediaError) and str(one) == str(other)
        else:
            assert isinstance(one, torch.Tensor) and one.shape == other.shape and len(one) == of.patches
            assert (one - other).abs().max() <= 2 / 127.5
    assert errors == 3


# Red if a JPEG is decoded ahead on the CPU that the GPU will decode.
def test_decoding_ahead_leaves_jpegs_to_the_gpu(library: Counting, threads: ThreadPoolExecutor) -> None:
    maker = PatchMaker(PROCESSOR, CPU, torch.float32, True, threads, GpuDecoder(library, CPU))
    png, photograph, cmyk = item(encoded(soft(64, 64), "PNG")), item(jpeg()), item(jpeg(mode="CMYK"))
    maker.ahead.want([photograph, png, cmyk])
    assert len(maker.ahead) == 2
    made, now = maker.make([photograph, png, cmyk], StageClock())
    assert now == 1 and library.calls == [1] and all(isinstance(one, torch.Tensor) for one in made)


# ---- In the engine


def ask(*images: bytes) -> list[dict[str, object]]:
    parts = [{"type": "image", "image": image} for image in images]
    return [{"role": "user", "content": [*parts, {"type": "text", "text": "What?"}]}]


# Red if answers change, images are counted wrongly, rows of one decoder are found by the other, or the library is left open.
def test_an_engine_with_such_a_decoder(library: Counting, tiny_checkpoints, monkeypatch: pytest.MonkeyPatch) -> None:
    sampling = SamplingParams(max_tokens=4, temperature=0, ignore_eos=True)
    images = [jpeg(80, 120, 1), jpeg(80, 120, 2), encoded(soft(64, 64, 3), "PNG")]
    some = item(images[0])
    with LLM(tiny_checkpoints["qwen3-vl"], device="cpu") as llm:
        expected = llm.chat(ask(*images), sampling).token_ids
        plain_key = llm.engine._embedding_key(some)
    closed = []
    library.close = lambda: closed.append(True)  # type: ignore[method-assign]
    monkeypatch.setattr(engine_parts, "choose_gpu_decoder", lambda *_: GpuDecoder(library, CPU))
    with LLM(tiny_checkpoints["qwen3-vl"], device="cpu") as llm:
        assert llm.chat(ask(*images), sampling).token_ids == expected
        assert library.calls == [2] and llm.engine.runner.counts.decoded == 3
        assert llm.chat(ask(*images), sampling).token_ids == expected and library.calls == [2]  # cached
        assert llm.engine._embedding_key(some) != plain_key
        with pytest.raises(MediaError):
            llm.chat(ask(jpeg(80, 120, 4)[:-300]), sampling)
    assert closed == [True]


# ---- On a GPU


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
    if folder() is None:
        pytest.skip("needs the assets folder")
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
    refs = [one for one in real_refs() if decoder.takes(one) and "hostile" not in one.source]
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
    bad = [one for one in real_refs() if "hostile" in one.source and decoder.takes(one)]
    for seed in range(24):
        data = np.frombuffer(jpeg(160, 240, seed), np.uint8).copy()
        data[random.integers(700, len(data) - 2, 12)] = random.integers(0, 255, 12)
        bad.append(ref(data.tobytes()))
    bad += [ref(change(jpeg(240, 320, seed))) for seed in range(4) for change in (holed, without_codes)]
    bad = [one for one in bad if decoder.takes(one)]
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
            sums.append((batch.places, batch.frames.clone()))
            del batch
    side.synchronize()
    for places, frames in sums:
        for place, frame in zip(places, frames.cpu(), strict=True):
            assert torch.equal(frame, expected[place])


@pytest.mark.gpu
@NEEDS_GPU
def test_gpu_patches_of_a_mixed_step(gpu_library, threads, mixed) -> None:
    device = torch.device("cuda")
    decoder = GpuDecoder(gpu_library, device)
    found, _ = PatchMaker(PROCESSOR, device, torch.bfloat16, True, threads, decoder).make(mixed, StageClock())
    expected, _ = PatchMaker(PROCESSOR, device, torch.bfloat16, True, threads).make(mixed, StageClock())
    for one, other in zip(found, expected, strict=True):
        if isinstance(other, MediaError):
            assert isinstance(one, MediaError) and str(one) == str(other)
        else:
            assert isinstance(one, torch.Tensor) and one.shape == other.shape
            assert (one - other).float().abs().mean() < 0.05


@pytest.mark.gpu
@NEEDS_GPU
def test_gpu_engine_answers(tiny_checkpoints: dict[str, Path]) -> None:
    sampling = SamplingParams(max_tokens=4, temperature=0, ignore_eos=True)
    images = [encoded(picture("RGB", 200, 300, seed), "JPEG", subsampling="4:4:4") for seed in range(3)]
    with LLM(tiny_checkpoints["qwen3-vl"], device="cuda", image_decoder="gpu", kv_cache_gb=0.5) as llm:
        decoder = llm.engine.runner.gpu_decoder
        assert decoder is not None
        assert len(llm.chat(ask(*images), sampling).token_ids) == 4
        assert decoder.failed == 0 and llm.engine.runner.counts.decoded == 3
        with pytest.raises(MediaError):
            llm.chat(ask(images[0][:-200]), sampling)
