"""What it costs to turn JPEG files into patches on the device, by decoder, and how far each decoder is from Pillow.

A run is what the engine does with the images of a step: find out which files are for the GPU, decode, turn, resize, cut, until
the device is done. Pictures are `noise` (independent pixels, large files), `photo` (noise at every scale in the light, as in
photographs) and `colours` (the same in each colour by itself, so that chroma has edges too).
"""

import functools
import io
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from benchmarks.measure.decoded_patches import decoded_patches
from sightline.bench.load.images import noise, photo
from sightline.config import MediaConfig
from sightline.encoder.gpu_decode import GpuDecoder, GpuFiles, Setting, choose_gpu_decoder, probe
from sightline.encoder.gpu_formats import differences
from sightline.encoder.jpeg_library import JpegLibrary, NvImageCodec, TorchvisionJpeg
from sightline.encoder.patch_maker import PatchMaker
from sightline.errors import ConfigError
from sightline.media.decode import decode_image
from sightline.media.item import item_of
from sightline.media.source import load_image
from sightline.models.families.qwen3_vl.processor import Qwen3VLProcessor
from sightline.ops.kernels import register_kernels
from sightline.processors import choose_decode_threads
from sightline.spec import PatchSpec, ProcessorSpec
from sightline.timing import StageClock
from sightline.types import MediaItem, MediaRef

SUBSAMPLINGS = ("4:2:0", "4:4:4")
_WARMUPS = 3
_ERROR_IMAGES = 4  # of each kind, to compare pixels on
_HALF = (0.5, 0.5, 0.5)
QWEN3_IMAGES = Qwen3VLProcessor(PatchSpec(65_536, 16_777_216, 16, 2, 2, _HALF, _HALF), video=None)


def colours(random: np.random.Generator, width: int, height: int) -> NDArray[np.uint8]:
    return np.stack([photo(random, width, height)[:, :, channel] for channel in range(3)], axis=-1)


CONTENTS: dict[str, Callable[[np.random.Generator, int, int], NDArray[np.uint8]]] = {
    "photo": photo,
    "noise": noise,
    "colours": colours,
}


@dataclass(frozen=True)
class PixelCost:
    """Milliseconds, medians."""

    shape: str
    content: str
    subsampling: str
    megabytes: float  # of the files together
    decoder: str
    total_ms: float  # files to patches, until the device is done
    decode_ms: float  # of the host: in decoders; on the CPU, of all threads together
    preprocess_ms: float  # of the host: launches, uploads


@dataclass(frozen=True)
class PixelError:
    """Against Pillow, over all pixels of some files."""

    files: str
    subsampling: str
    decoder: str
    pixels_off: float  # share of pixels of which a colour differs
    mean: float  # of the absolute differences, in steps of 255
    largest: int


def open_decoders(device: torch.device, threads: int) -> tuple[dict[str, JpegLibrary], dict[str, str]]:
    """Libraries by name, and why the others are not there."""
    makers: dict[str, Callable[[], JpegLibrary]] = {
        "nvimgcodec": lambda: NvImageCodec(device, threads),
        "nvimgcodec_hybrid": lambda: NvImageCodec(device, threads, kinds=["HYBRID_CPU_GPU"]),
        "nvjpeg": lambda: TorchvisionJpeg(device),
    }
    found, missing = {}, {}
    for name, make in makers.items() if device.type == "cuda" else ():
        try:
            library = make()
            probe(library, device)
            found[name] = library
        except Exception as error:  # whatever keeps a library from starting is what this reports
            missing[name] = str(error)
    return found, missing


def decoder_of(setting: Setting, device: torch.device, threads: int) -> str:
    """The name under which this benchmark has the decoder that the engine would take."""
    chosen = choose_gpu_decoder(setting, device, threads)
    if chosen is None:
        return "cpu"
    chosen.close()
    return chosen.name.split()[0]


def make_files(content: str, width: int, height: int, count: int, quality: int, subsampling: str) -> list[bytes]:
    """Different files of equal nature: one picture, shifted further each time."""
    picture = CONTENTS[content](np.random.default_rng([width, height]), width, height)
    files = []
    for number in range(count):
        buffer = io.BytesIO()
        shifted = Image.fromarray(np.roll(picture, 11 * number, axis=1))
        shifted.save(buffer, "jpeg", quality=quality, subsampling=subsampling)
        files.append(buffer.getvalue())
    return files


class CannotDecode(Exception):
    """A decoder does not do what was asked of it here."""


class PixelBench:
    def __init__(self, device: torch.device, dtype: torch.dtype, processor: ProcessorSpec, repeats: int) -> None:
        if repeats < 1:
            raise ConfigError(f"--repeats is {repeats}, but must be at least 1.")
        register_kernels()
        threads = choose_decode_threads(None)
        self.device, self.dtype, self.processor, self.repeats = device, dtype, processor, repeats
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="decode")
        self.libraries, self.missing = open_decoders(device, threads)
        self.settings = {setting: self._decoder_of(setting, threads) for setting in ("gpu", "auto", "cpu")}

    def _decoder_of(self, setting: Setting, threads: int) -> str | None:
        try:
            return decoder_of(setting, self.device, threads)
        except ConfigError:
            return None

    @property
    def decoders(self) -> list[str]:
        return ["cpu", *self.libraries]

    @functools.cached_property
    def formats(self) -> dict[str, dict[str, int | None]]:
        """Of each library and kind of JPEG 2000 or TIFF, the largest difference to Pillow; None where it cannot decode it."""
        return {name: differences(library, self.device) for name, library in self.libraries.items()}

    def close(self) -> None:
        self._threads.shutdown()
        for library in self.libraries.values():
            library.close()

    def items(self, files: Sequence[bytes]) -> list[MediaItem]:
        return [item_of(load_image(data, MediaConfig()), self.processor) for data in files]

    def patches(self, items: Sequence[MediaItem], decoder: str, dtype: torch.dtype, clock: StageClock) -> list[torch.Tensor]:
        """A decoder that has not seen these files: nothing is known of them."""
        gpu = GpuDecoder(self.libraries[decoder], self.device) if decoder != "cpu" else None
        made = decoded_patches(items, PatchMaker(self.processor, self.device, dtype, True, gpu), self._threads, clock)
        if gpu is not None and gpu.failed:
            raise CannotDecode(f"{decoder} could not decode {gpu.failed} of {len(items)} files.")
        return made

    def measure(self, shape: str, content: str, subsampling: str, files: Sequence[bytes], decoder: str) -> PixelCost:
        items = self.items(files)
        totals, clocks = [], []
        for _ in range(_WARMUPS + self.repeats):
            clock = StageClock()
            self._wait()
            start = time.perf_counter()
            self.patches(items, decoder, self.dtype, clock)
            self._wait()
            totals.append(1000 * (time.perf_counter() - start))
            clocks.append(clock.seconds)
        stages = {
            stage: 1000 * statistics.median(clock.get(stage, 0.0) for clock in clocks[_WARMUPS:])
            for stage in ("decode", "preprocess")
        }
        return PixelCost(
            shape=shape,
            content=content,
            subsampling=subsampling,
            megabytes=sum(map(len, files)) / 1e6,
            decoder=decoder,
            total_ms=statistics.median(totals[_WARMUPS:]),
            decode_ms=stages["decode"],
            preprocess_ms=stages["preprocess"],
        )

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def error(self, name: str, subsampling: str, refs: Sequence[MediaRef], decoder: str) -> PixelError | None:
        """None if the decoder takes none of the files."""
        gpu = GpuDecoder(self.libraries[decoder], self.device)
        off = count = largest = 0
        total = 0.0
        files = GpuFiles()
        taken = [ref for ref in refs if files.takes(ref)]
        for ref in taken:
            for batch in gpu.decode([ref]):
                found = batch.frames[0].cpu().numpy().astype(np.int16)
                difference = np.abs(found - decode_image(ref))
                off += int((difference.max(axis=-1) > 0).sum())
                total += float(difference.mean(dtype=np.float64)) * difference[:, :, 0].size
                count += difference[:, :, 0].size
                largest = max(largest, int(difference.max()))
        return PixelError(name, subsampling, decoder, off / count, total / count, largest) if count else None


def photographs(folder: Path) -> list[MediaRef]:
    """The JPEG files of a folder, as far as they can be read."""
    found = []
    for path in sorted(folder.iterdir()):
        if path.suffix.lower() in (".jpg", ".jpeg"):
            found.append(load_image(path, MediaConfig()))
    if not found:
        raise ConfigError(f"--photos names {str(folder)!r}, but there is no JPEG file in it.")
    return found


def error_files(name: str, width: int, height: int, quality: int, subsampling: str) -> list[MediaRef]:
    files = make_files(name, width, height, _ERROR_IMAGES, quality, subsampling)
    return [load_image(data, MediaConfig()) for data in files]


def figures(costs: Sequence[PixelCost], settings: Mapping[str, str | None]) -> dict[str, float]:
    """Keys of summary.json: of `photo` with 4:2:0, what cameras write; noise beside it."""
    found = {}
    for cost in costs:
        if cost.subsampling != "4:2:0" or cost.content == "colours":
            continue
        for setting, decoder in settings.items():
            if decoder == cost.decoder:
                suffix = "" if setting == "gpu" else f"_{setting}"
                content = "" if cost.content == "photo" else f"_{cost.content}"
                found[f"pixels_ms{suffix}{content}.{cost.shape}"] = cost.total_ms
    return found


def as_json(
    bench: PixelBench,
    costs: Sequence[PixelCost],
    errors: Sequence[PixelError],
    rows: Sequence[Any],  # of benchmarks/measure/decoder_rows.py
) -> dict[str, object]:
    return {
        "dtype": str(bench.dtype).removeprefix("torch."),
        "decoders": {name: library.name for name, library in bench.libraries.items()},
        "missing": bench.missing,
        "settings": bench.settings,
        "formats": bench.formats,
        "costs": [asdict(cost) for cost in costs],
        "pixel_errors": [asdict(error) for error in errors],
        "row_errors": [asdict(row) for row in rows],
    }
