"""Libraries that decode many files on a GPU in one call. Both are optional, and are imported only when they are to be used."""

import contextlib
import importlib
import io
import os
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import torch
from PIL import Image

from sightline.errors import ConfigError


class JpegLibrary(Protocol):
    name: str  # with the version: rows of an image go by it, so that those of another decoder are never taken for them

    def decode(self, files: Sequence[bytes], into: Sequence[torch.Tensor]) -> list[bool]:
        """Decodes each file into its uint8 [height, width, 3], as stored, not turned by EXIF; says which it could.

        The tensors are contiguous, and filled in the order of the current stream. A file of another size counts as one that
        could not be decoded.
        """
        ...

    def close(self) -> None: ...


class NvImageCodec:
    """nvidia-nvimgcodec: nvJPEG with chroma interpolated as libjpeg does ("fancy upsampling"), straight into torch's memory;
    nvJPEG2000 and nvTIFF, where they are installed.

    On a CPU device it is libjpeg-turbo, OpenJPEG and libtiff in the same library, by which tests go through this without a GPU.
    """

    # First the chip's own JPEG engines, where it has some: faster, and nearer to Pillow's pixels. What they do not take, such
    # as progressive files, goes to nvJPEG's kernels, other formats to libraries of their own. Which has a file depends on the
    # file alone: a decoder that shares a batch out between them would not give the same pixels each time.
    def __init__(
        self,
        device: torch.device,
        threads: int,
        kinds: Sequence[str] = ("HW_GPU_ONLY", "HYBRID_CPU_GPU", "GPU_ONLY"),
        options: str = "",
    ) -> None:
        self._codec = codec = _import_nvimgcodec()
        self._device = device
        on_cpu = device.type == "cpu"
        number = codec.NVIMGCODEC_DEVICE_CPU_ONLY if on_cpu else _index(device)
        self._params = codec.DecodeParams(apply_exif_orientation=False, color_spec=codec.ColorSpec.SRGB, allow_any_depth=False)

        def decoder(kind: str) -> Any:
            return codec.Decoder(
                device_id=number,
                max_num_cpu_threads=max(1, min(threads, (os.cpu_count() or 2) - 1)),  # it warns if asked for all processors
                backends=[codec.Backend(codec.BackendKind.__members__[kind])],
                options=f":fancy_upsampling=1 {options}".strip(),
            )

        with _quiet():
            self._decoders: dict[str, Any] = {kind: decoder(kind) for kind in (("CPU_ONLY",) if on_cpu else kinds)}
        if "HW_GPU_ONLY" in self._decoders and len(self._decoders) > 1 and not self._has_engines():
            self._decoders.pop("HW_GPU_ONLY").__exit__(None, None, None)
        self.name = f"nvimgcodec {codec.__version__} {'+'.join(self._decoders)}"

    def _has_engines(self) -> bool:
        """Whether the chip decodes a plain picture by itself."""
        data = io.BytesIO()
        Image.new("RGB", (64, 64), "grey").save(data, "JPEG")
        target = torch.empty((64, 64, 3), dtype=torch.uint8, device=self._device)
        stream = torch.cuda.current_stream(self._device).cuda_stream
        code = self._parse(data.getvalue())
        return self._run(self._decoders["HW_GPU_ONLY"], [code], [self._codec.as_image(target, stream)], stream)[0] is not None

    def decode(self, files: Sequence[bytes], into: Sequence[torch.Tensor]) -> list[bool]:
        stream = torch.cuda.current_stream(self._device).cuda_stream if self._device.type == "cuda" else 0
        indices, streams, images = [], [], []
        for position, (data, target) in enumerate(zip(files, into, strict=True)):
            code = self._parse(data)
            if code is not None and (code.height, code.width) == tuple(target.shape[:2]):
                indices.append(position)
                streams.append(code)
                images.append(self._codec.as_image(target if target.is_cuda else target.numpy(), stream))
        done = [False] * len(files)
        for decoder in self._decoders.values():
            left = [number for number, position in enumerate(indices) if not done[position]]
            if left:
                found = self._run(decoder, [streams[number] for number in left], [images[number] for number in left], stream)
                for number, image in zip(left, found, strict=True):
                    done[indices[number]] = image is not None
        return done

    def _parse(self, data: bytes) -> Any:
        try:
            return self._codec.CodeStream(data)
        except RuntimeError:  # its parser does not know what this is
            return None

    def _run(self, decoder: Any, streams: list[Any], images: list[Any], stream: int) -> list[Any]:
        with torch.cuda.device(self._device) if self._device.type == "cuda" else contextlib.nullcontext():
            try:
                return list(decoder.decode(streams, images=images, params=self._params, cuda_stream=stream))
            except (RuntimeError, ValueError):  # it says None of single files; what it raises is about the call
                return [None] * len(streams)

    def close(self) -> None:
        while self._decoders:
            self._decoders.popitem()[1].__exit__(None, None, None)


def _import_nvimgcodec() -> Any:
    # The library writes a line for each file it cannot decode; those are told of by us. It reads this when it is loaded.
    os.environ.setdefault("PYNVIMGCODEC_VERBOSITY", "0")
    try:
        with _quiet():
            return importlib.import_module("nvidia.nvimgcodec")
    except Exception as error:
        raise ConfigError(f"nvidia-nvimgcodec cannot be loaded: {error}.") from error


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """The library complains on standard error about decoders of other formats that are not installed and not needed here."""
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


class TorchvisionJpeg:
    """torchvision's nvJPEG: chroma is repeated, not interpolated, so edges of colour differ from what Pillow gives."""

    def __init__(self, device: torch.device) -> None:
        try:
            torchvision = importlib.import_module("torchvision")
            self._io: Any = importlib.import_module("torchvision.io")
        except Exception as error:  # an ImportError, or a RuntimeError if it was built for another torch
            raise ConfigError(f"torchvision cannot be loaded: {error}.") from error
        self._device = device
        self.name = f"nvjpeg of torchvision {torchvision.__version__}"

    def decode(self, files: Sequence[bytes], into: Sequence[torch.Tensor]) -> list[bool]:
        coded = [torch.frombuffer(bytearray(data), dtype=torch.uint8) for data in files]
        try:
            pictures: list[torch.Tensor | None] = list(self._run(coded))
        except RuntimeError:  # one bad file fails the whole call
            pictures = [self._alone(one) for one in coded]
        done = []
        for picture, target in zip(pictures, into, strict=True):
            fits = picture is not None and tuple(picture.shape) == (3, *target.shape[:2])
            if fits and picture is not None:
                target.copy_(picture.permute(1, 2, 0))
            done.append(fits)
        return done

    def _run(self, coded: list[torch.Tensor]) -> list[torch.Tensor]:
        pictures: list[torch.Tensor] = self._io.decode_jpeg(coded, mode=self._io.ImageReadMode.RGB, device=self._device)
        return pictures

    def _alone(self, coded: torch.Tensor) -> torch.Tensor | None:
        try:
            return self._run([coded])[0]
        except RuntimeError:
            return None

    def close(self) -> None:
        """Its decoder belongs to the process."""


def _index(device: torch.device) -> int:
    return device.index if device.index is not None else torch.cuda.current_device()
