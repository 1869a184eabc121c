"""JPEGs to decode, of every kind, a library that counts, and what is around them in a step."""

from collections.abc import Sequence

import numpy as np
import torch
from PIL import Image

from family_processors import make_processor, patch_spec
from media.pictures import encoded
from sightline.bench.load.images import photo
from sightline.config import MediaConfig
from sightline.encoder.gpu_decode import GpuDecoder
from sightline.encoder.jpeg_library import JpegLibrary
from sightline.media.item import item_of
from sightline.media.source import load_image
from sightline.types import MediaItem, MediaRef

CPU = torch.device("cpu")
IMAGE, VIDEO = patch_spec(4096, 16_777_216, 16), patch_spec(4096, 100_000, 16)
PROCESSOR = make_processor("qwen3-vl", IMAGE, VIDEO)


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
    return item_of(ref(data), PROCESSOR)


def pixels(decoder: GpuDecoder, refs: Sequence[MediaRef]) -> dict[int, torch.Tensor]:
    return {
        place: frame.cpu() for batch in decoder.decode(refs) for place, frame in zip(batch.indices, batch.frames, strict=True)
    }


# ---- Which decoder


def holed(data: bytes) -> bytes:
    """A file whose pixels end half-way, with its end marker: Pillow shows half a picture."""
    return data[: len(data) // 2].rstrip(b"\xff") + b"\xff\xd9"


def without_codes(data: bytes) -> bytes:
    """A file whose first table of codes makes no sense: nobody can decode it."""
    table = data.index(b"\xff\xc4")
    return data[: table + 5] + b"\xff" * 4 + data[table + 9 :]


def ask(*images: bytes) -> list[dict[str, object]]:
    parts = [{"type": "image", "image": image} for image in images]
    return [{"role": "user", "content": [*parts, {"type": "text", "text": "What?"}]}]
