"""Files decoded on the GPU, all of a step in one call; which ones, and by which library.

A JPEG goes to the GPU if its markers say that every decoder means the same by it (media/jpeg_frame.py), other files if their
kind has Pillow's pixels there (gpu_formats.py), so one engine always decodes a file the same way. All else, and what the
library cannot do, is for Pillow, which also has the last word on broken files.
"""

import io
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from sightline.encoder.gpu_formats import JPEG, equal_kinds, kind_of
from sightline.encoder.jpeg_library import JpegLibrary, NvImageCodec, TorchvisionJpeg
from sightline.errors import ConfigError
from sightline.media.cost import image_megapixels
from sightline.media.jpeg_frame import is_everyday, read_frame
from sightline.types import ImageHeader, MediaRef

Setting = Literal["auto", "gpu", "cpu"]

_SHORTEST_SIDE = 16  # at a few pixels decoders leave chroma as it is, each below its own limit
MOST_PIXELS = 16_000_000
# Times scans: the library decodes scans on the host, in the step that encodes the picture.
_MOST_MEGAPIXELS_OF_WORK = 32
LIBRARY_BYTES_PER_PIXEL = 10  # about what a library keeps for the largest picture it met, in each of its threads
_MOST_REMEMBERED = 65_536  # answers to whether the GPU takes a file
# Largest difference to Pillow that arithmetic alone makes. Chroma that is repeated instead of interpolated is far beyond it.
_ROUNDING = 8


@dataclass(frozen=True)
class DecodedBatch:
    """Pictures of one size."""

    indices: list[int]  # which of the refs they are
    frames: torch.Tensor  # uint8 [pictures, height, width, 3], turned as they are displayed


class GpuFiles:
    """Which files are for the GPU: from their bytes, and the kinds of files that its library decodes. So one engine always
    decodes a file the same way."""

    def __init__(self, kinds: Sequence[str] = (JPEG,)) -> None:
        self._kinds = frozenset(kinds)
        self._known: OrderedDict[bytes, bool] = OrderedDict()  # by digest

    def takes(self, ref: MediaRef) -> bool:
        """A file that is named by its digest alone is judged as it was when its bytes were here; unseen, it is not taken."""
        if not isinstance(ref.header, ImageHeader) or ref.header.format not in ("JPEG", "MPO", "JPEG2000", "TIFF"):
            return False
        known = self._known.get(ref.digest)
        if known is None:
            if not ref.data:
                return False
            known = self._known[ref.digest] = self._judge(ref.data, ref.header, ref.source)
            if len(self._known) > _MOST_REMEMBERED:
                self._known.popitem(last=False)
        return known

    def _judge(self, data: bytes, header: ImageHeader, source: str) -> bool:
        if header.format in ("JPEG", "MPO"):
            return JPEG in self._kinds and _is_for_gpu(data, header)
        return kind_of(data, header, source) in self._kinds


class GpuDecoder:
    def __init__(self, library: JpegLibrary, device: torch.device, kinds: Sequence[str] = (JPEG,)) -> None:
        self._library, self._device, self.kinds = library, device, tuple(kinds)
        self._stream: torch.cuda.Stream | None = None  # made when it is first needed
        self.failed = 0  # files that the library could not decode

    @property
    def name(self) -> str:
        return self._library.name

    def decode(self, refs: Sequence[MediaRef]) -> list[DecodedBatch]:
        """Files that it takes, in one call of the library. Those in no batch could not be decoded.

        Runs beside what the device is at; the frames are there for what the caller's stream is given next.
        """
        if self._device.type != "cuda":
            return self._decode(refs)
        # The library's launches wait for what is queued before them. In a queue of their own that is nothing.
        self._stream = self._stream or torch.cuda.Stream(self._device)
        with torch.cuda.stream(self._stream):
            batches = self._decode(refs)
        current = torch.cuda.current_stream(self._device)
        current.wait_stream(self._stream)
        for batch in batches:
            batch.frames.record_stream(current)  # its memory belongs to the other stream
        return batches

    def wait(self) -> None:
        """Until all that the caller's stream was given is done, and memory of frames that it read is free again."""
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()

    def _decode(self, refs: Sequence[MediaRef]) -> list[DecodedBatch]:
        shelves: dict[tuple[int, int, int], list[int]] = {}  # by stored height, stored width, orientation
        for index, ref in enumerate(refs):
            shelves.setdefault(_stored(ref), []).append(index)
        batches = {
            key: torch.empty((len(indices), key[0], key[1], 3), dtype=torch.uint8, device=self._device)
            for key, indices in shelves.items()
        }
        order = [index for indices in shelves.values() for index in indices]
        targets = [frame for frames in batches.values() for frame in frames.unbind()]
        done = dict(zip(order, self._library.decode([refs[index].data for index in order], targets), strict=True))
        self.failed += len(refs) - sum(done.values())
        found = []
        for key, indices in shelves.items():
            good = [number for number, index in enumerate(indices) if done[index]]
            frames = batches[key] if len(good) == len(indices) else batches[key][good]
            if good:
                found.append(DecodedBatch([indices[number] for number in good], turned(frames, key[2])))
        return found

    def close(self) -> None:
        self._library.close()


def _is_for_gpu(data: bytes, header: ImageHeader) -> bool:
    if min(header.width, header.height) < _SHORTEST_SIDE or header.width * header.height > MOST_PIXELS:
        return False
    if image_megapixels(header) > _MOST_MEGAPIXELS_OF_WORK:
        return False
    frame = read_frame(data)
    if frame is None or not is_everyday(data, frame):
        return False
    height, width = (frame.width, frame.height) if header.orientation >= 5 else (frame.height, frame.width)
    return (height, width) == (header.height, header.width)


def _stored(ref: MediaRef) -> tuple[int, int, int]:
    header = ref.header
    assert isinstance(header, ImageHeader)
    sides = (header.width, header.height) if header.orientation >= 5 else (header.height, header.width)
    return *sides, header.orientation


def turned(frames: torch.Tensor, orientation: int) -> torch.Tensor:
    """[frames, height, width, 3] as EXIF's orientation displays them: what Pillow's exif_transpose does."""
    if orientation >= 5:
        frames = frames.transpose(1, 2)
    flips = {2: (2,), 3: (1, 2), 4: (1,), 6: (2,), 7: (1, 2), 8: (1,)}.get(orientation)
    return (frames.flip(flips) if flips else frames).contiguous()


def choose_gpu_decoder(setting: Setting, device: torch.device, threads: int) -> GpuDecoder | None:
    """The decoder that a setting means on this machine; None is the CPU."""
    if setting == "cpu" or (setting == "auto" and device.type != "cuda"):
        return None
    if device.type != "cuda":
        raise ConfigError(f"image_decoder is 'gpu', but the model runs on {device.type}.")
    faults = []
    try:
        library: JpegLibrary = NvImageCodec(device, threads)
        error = probe(library, device)
        if setting == "gpu" or error <= _ROUNDING:
            return GpuDecoder(library, device, (JPEG, *equal_kinds(library, device)))
        library.close()
    except Exception as fault:  # missing, built for another CUDA, no nvJPEG to be found: there are many ways
        faults.append(_sentence(fault))
    if setting == "auto":
        return None
    try:
        library = TorchvisionJpeg(device)
        probe(library, device)
        return GpuDecoder(library, device)
    except Exception as fault:
        faults.append(_sentence(fault))
    raise ConfigError(f"image_decoder is 'gpu', but no library can decode JPEGs there: {'; '.join(faults)}.")


def _sentence(fault: Exception) -> str:
    return " ".join(str(fault).split()).rstrip(".") or type(fault).__name__


def probe(library: JpegLibrary, device: torch.device) -> int:
    """Decodes a small picture: the largest difference to what Pillow makes of it. Raises if it cannot."""
    data, expected = _probe_picture()
    target = torch.zeros(expected.shape, dtype=torch.uint8, device=device)
    if not library.decode([data], [target])[0]:
        raise ConfigError(f"{library.name} cannot decode a JPEG here.")
    return int(np.abs(target.cpu().numpy().astype(np.int16) - expected).max())


def _probe_picture() -> tuple[bytes, NDArray[np.uint8]]:
    """Stripes of colour three pixels wide, with chroma at half the resolution: where interpolation shows most."""
    x = np.arange(96) // 3 % 3
    stripes = np.array([[200, 40, 40], [40, 60, 200], [60, 180, 60]], np.uint8)[x]
    buffer = io.BytesIO()
    Image.fromarray(np.broadcast_to(stripes, (64, 96, 3)).copy()).save(buffer, "jpeg", quality=95, subsampling="4:2:0")
    return buffer.getvalue(), np.asarray(Image.open(buffer).convert("RGB"))
