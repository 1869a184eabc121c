"""JPEGs decoded on the GPU, all of a step in one call; which ones, and by which library.

A file goes to the GPU if its markers say that every decoder means the same by it (media/jpeg_frame.py), so one engine always
decodes it the same way. All else, and what the library cannot do, is for Pillow, which also has the last word on broken files.
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

from sightline.errors import ConfigError
from sightline.media.jpeg_frame import is_everyday, read_frame
from sightline.types import ImageHeader, MediaRef
from sightline.vision.jpeg_library import JpegLibrary, NvImageCodec, TorchvisionJpeg

Setting = Literal["auto", "gpu", "cpu"]

_SHORTEST_SIDE = 16  # at a few pixels decoders leave chroma as it is, each below its own limit
MOST_PIXELS = 16_000_000
LIBRARY_BYTES_PER_PIXEL = 10  # about what a library keeps for the largest picture it met, in each of its threads
_MOST_REMEMBERED = 65_536  # answers to whether the GPU takes a file
# Largest difference to Pillow that arithmetic alone makes. Chroma that is repeated instead of interpolated is far beyond it.
_ROUNDING = 8


@dataclass(frozen=True)
class DecodedBatch:
    """Pictures of one size."""

    places: list[int]  # which of the refs they are
    frames: torch.Tensor  # uint8 [pictures, height, width, 3], turned as they are displayed


class GpuDecoder:
    def __init__(self, library: JpegLibrary, device: torch.device) -> None:
        self._library, self._device = library, device
        self._stream: torch.cuda.Stream | None = None  # made when it is first needed
        self._taken: OrderedDict[bytes, bool] = OrderedDict()  # by digest
        self.failed = 0  # files that the library could not decode

    @property
    def name(self) -> str:
        return self._library.name

    def takes(self, ref: MediaRef) -> bool:
        """Whether this file is for the GPU: from its bytes alone."""
        if not ref.data or not isinstance(ref.header, ImageHeader) or ref.header.format not in ("JPEG", "MPO"):
            return False
        known = self._taken.get(ref.digest)
        if known is None:
            known = self._taken[ref.digest] = _is_for_gpu(ref.data, ref.header)
            if len(self._taken) > _MOST_REMEMBERED:
                self._taken.popitem(last=False)
        return known

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
        for place, ref in enumerate(refs):
            shelves.setdefault(_stored(ref), []).append(place)
        batches = {
            key: torch.empty((len(places), key[0], key[1], 3), dtype=torch.uint8, device=self._device)
            for key, places in shelves.items()
        }
        order = [place for places in shelves.values() for place in places]
        targets = [frame for frames in batches.values() for frame in frames.unbind()]
        done = dict(zip(order, self._library.decode([refs[place].data for place in order], targets), strict=True))
        self.failed += len(refs) - sum(done.values())
        found = []
        for key, places in shelves.items():
            good = [number for number, place in enumerate(places) if done[place]]
            frames = batches[key] if len(good) == len(places) else batches[key][good]
            if good:
                found.append(DecodedBatch([places[number] for number in good], turned(frames, key[2])))
        return found

    def close(self) -> None:
        self._library.close()


def _is_for_gpu(data: bytes, header: ImageHeader) -> bool:
    if min(header.width, header.height) < _SHORTEST_SIDE or header.width * header.height > MOST_PIXELS:
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
    """The decoder for JPEGs that a setting means on this machine; None is the CPU."""
    if setting == "cpu" or (setting == "auto" and device.type != "cuda"):
        return None
    if device.type != "cuda":
        raise ConfigError(f"image_decoder is 'gpu', but the model runs on {device.type}.")
    faults = []
    try:
        library: JpegLibrary = NvImageCodec(device, threads)
        error = probe(library, device)
        if setting == "gpu" or error <= _ROUNDING:
            return GpuDecoder(library, device)
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
