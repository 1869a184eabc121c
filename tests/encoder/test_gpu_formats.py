"""JPEG 2000 and TIFF go to the library where its pixels are Pillow's, judged at the start and by each file's header.

nvidia-nvimgcodec decodes them on a CPU, too; whether nvJPEG2000 and nvTIFF give Pillow's pixels only a GPU shows.
"""

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from encoder.jpegs import CPU, Counting, ask, jpeg, pixels, ref, soft
from media.pictures import encoded
from sightline import LLM, SamplingParams
from sightline.encoder.gpu_decode import GpuDecoder, GpuFiles
from sightline.encoder.gpu_formats import JPEG, KINDS, MOST_PIXELS, differences, equal_kinds, kind_of
from sightline.encoder.jpeg_library import NvImageCodec
from sightline.media.decode import decode_image
from sightline.types import ImageHeader
from sightline.worker import build


def jp2(height: int = 80, width: int = 120, seed: int = 0, mode: str = "RGB", **options: Any) -> bytes:
    return encoded(soft(height, width, seed).convert(mode), "JPEG2000", **options)


def tiff(height: int = 80, width: int = 120, seed: int = 0, mode: str = "RGB", **options: Any) -> bytes:
    return encoded(soft(height, width, seed).convert(mode), "TIFF", **options)


EVERYDAY = {
    "JPEG 2000, reversible": [
        jp2(),
        jp2(33, 47),
        jp2(tile_size=(32, 32)),
        jp2(num_resolutions=1, mct=0),
        jp2(progression="RPCL", codeblock_size=(32, 32)),
    ],
    "JPEG 2000, irreversible": [jp2(irreversible=True), jp2(irreversible=True, quality_layers=[20, 5])],
    "TIFF, plain": [tiff(), tiff(33, 47)],
    "TIFF, lzw": [tiff(compression="tiff_lzw")],
    "TIFF, lzw of differences": [tiff(compression="tiff_lzw", tiffinfo={317: 2})],
    "TIFF, deflate": [tiff(compression="tiff_adobe_deflate"), tiff(compression="tiff_deflate")],
    "TIFF, deflate of differences": [tiff(compression="tiff_deflate", tiffinfo={317: 2})],
}
OTHERS = {
    "grey": jp2(mode="L"),
    "with alpha": jp2(mode="RGBA"),
    "no container": jp2(no_jp2=True),
    "cut off": jp2()[:-40],
    "without its end": jp2()[:-2],
    "small": jp2(15, 40),
    "grey TIFF": tiff(mode="L"),
    "palette": tiff(mode="P"),
    "CMYK": tiff(mode="CMYK"),
    "TIFF with alpha": tiff(mode="RGBA"),
    "JPEG in TIFF": tiff(compression="jpeg"),
    "packbits": tiff(compression="packbits"),
    "turned": tiff(tiffinfo={274: 6}),
    "two pages": encoded(soft(80, 120), "TIFF", save_all=True, append_images=[soft(80, 120, 1)]),
    "PNG": encoded(soft(80, 120), "PNG"),
}


def kind(data: bytes) -> str | None:
    found = ref(data)
    assert isinstance(found.header, ImageHeader)
    return kind_of(data, found.header, found.source)


# Red if a file is judged by less than its header, or files that decoders differ about are of a kind.
def test_kinds_of_files() -> None:
    assert set(EVERYDAY) == set(KINDS)
    for name, files in EVERYDAY.items():
        assert [kind(data) for data in files] == [name] * len(files)
    assert {name for name, data in OTHERS.items() if kind(data)} == set()


def test_a_file_whose_size_lies_and_a_large_one_are_of_no_kind() -> None:
    data = jp2()
    siz = data.index(b"\xff\x51")
    wider = data[: siz + 6] + struct.pack(">I", 121) + data[siz + 10 :]
    header = ref(data).header
    assert isinstance(header, ImageHeader) and kind_of(data, header, "") is not None and kind_of(wider, header, "") is None
    rows = MOST_PIXELS // 500 + 1
    large = ImageHeader("JPEG2000", 500, rows, 1, 3, 1)
    assert kind_of(data, large, "") is None


# Red if bytes of any value at any place of a header raise, or make a file of another coding one of the kind.
def test_broken_headers_raise_nothing() -> None:
    data, random = jp2(), np.random.default_rng(0)
    header = ref(data).header
    assert isinstance(header, ImageHeader)
    start = data.index(b"\xff\x93")
    for place in range(start):
        for value in {0, 0xFF, int(random.integers(256))}:
            changed = data[:place] + bytes([value]) + data[place + 1 :]
            assert kind_of(changed, header, "") in (None, "JPEG 2000, reversible", "JPEG 2000, irreversible")
    for end in range(0, len(data), 7):
        assert kind_of(data[:end], header, "") is None


def test_pixels_are_those_of_pillow(library: Counting) -> None:
    """Red if the library's CPU side differs from Pillow in one value of any kind, or if pictures of a batch change places."""
    assert differences(library, CPU) == dict.fromkeys(KINDS, 0)
    decoder = GpuDecoder(library, CPU, (JPEG, *equal_kinds(library, CPU)))
    refs = [ref(data) for files in EVERYDAY.values() for data in files]
    files = GpuFiles(decoder.kinds)
    assert all(files.takes(one) for one in refs) and not any(GpuFiles().takes(one) for one in refs)
    found = pixels(decoder, refs)
    assert sorted(found) == list(range(len(refs)))
    for place, one in enumerate(refs):
        assert np.array_equal(found[place].numpy(), decode_image(one))


class Rounding:
    """A library whose pixels are one off for what has fractions, and which has no codec for LZW."""

    name = "rounding"

    def __init__(self, library: Counting) -> None:
        self._library = library

    def decode(self, files: Sequence[bytes], into: Sequence[torch.Tensor]) -> list[bool]:
        done = self._library.decode(files, into)
        for data, target in zip(files, into, strict=True):
            if kind(data) == "JPEG 2000, irreversible":
                target[0, 0, 0] = (int(target[0, 0, 0]) + 1) % 256
        return [one and "lzw" not in (kind(data) or "") for one, data in zip(done, files, strict=True)]

    def close(self) -> None:
        pass


# Red if one wrong value, or a codec that is missing, does not keep a kind on the CPU.
def test_kinds_that_differ_are_not_taken(library: Counting) -> None:
    found = equal_kinds(Rounding(library), CPU)
    assert found == ("JPEG 2000, reversible", "TIFF, plain", "TIFF, deflate", "TIFF, deflate of differences")
    files = GpuFiles((JPEG, *found))
    assert files.takes(ref(jp2())) and not files.takes(ref(jp2(irreversible=True)))
    assert files.takes(ref(jpeg())) and not GpuFiles(found).takes(ref(jpeg()))


# Red if the engine decodes such files elsewhere than the start has decided, or answers change.
def test_an_engine_with_such_a_decoder(library: Counting, tiny_checkpoints: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    sampling = SamplingParams(max_tokens=4, temperature=0, ignore_eos=True)
    images = [jp2(seed=1), tiff(seed=2), jp2(seed=3, irreversible=True)]
    with LLM(tiny_checkpoints["qwen3-vl"], device="cpu") as llm:
        expected = llm.chat(ask(*images), sampling).token_ids
    kinds = (JPEG, "JPEG 2000, reversible", "TIFF, plain")
    monkeypatch.setattr(build, "choose_gpu_decoder", lambda *_: GpuDecoder(library, CPU, kinds))
    with LLM(tiny_checkpoints["qwen3-vl"], device="cpu") as llm:
        assert llm.chat(ask(*images), sampling).token_ids == expected
        assert library.calls == [2] and llm.engine.counts.decoded == 3


@pytest.mark.gpu
def test_gpu_pixels_of_equal_kinds() -> None:
    """Red if a kind that passed at the start has other pixels than Pillow's in larger files."""
    device = torch.device("cuda")
    try:
        library = NvImageCodec(device, 8)
    except Exception as error:
        pytest.skip(str(error))
    kinds = equal_kinds(library, device)
    if not kinds:
        pytest.skip("nvJPEG2000 and nvTIFF are not there, or none of their pixels are Pillow's")
    noise = np.random.default_rng(1).integers(0, 256, (700, 900, 3), dtype=np.uint8)
    files = [data for name in kinds for data in EVERYDAY[name]]
    files += [encoded(Image.fromarray(noise), "JPEG2000"), encoded(Image.fromarray(noise), "TIFF", compression="tiff_lzw")]
    taken = [one for one in map(ref, files) if GpuFiles(kinds).takes(one)]
    found = pixels(GpuDecoder(library, device, kinds), taken)
    assert sorted(found) == list(range(len(taken)))
    for place, one in enumerate(taken):
        assert np.array_equal(found[place].numpy(), decode_image(one)), kind(one.data)
    library.close()
