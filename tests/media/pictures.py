"""Small real pictures and videos, made in memory, so that the tests need no files."""

import io
from fractions import Fraction

import av
import numpy as np
from numpy.typing import NDArray
from PIL import Image

WIDTH, HEIGHT = 22, 14  # not square, so that a forgotten rotation shows


def noise(height: int = HEIGHT, width: int = WIDTH, seed: int = 0) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def picture(mode: str = "RGB", height: int = HEIGHT, width: int = WIDTH, seed: int = 0) -> Image.Image:
    """Noise in one of Pillow's modes; the ones with alpha or a palette have some transparency."""
    colours = Image.fromarray(noise(height, width, seed))
    if mode == "I;16":
        values = np.random.default_rng(seed).integers(0, 65536, (height, width), dtype=np.uint16)
        return Image.fromarray(values)
    if mode in ("LA", "RGBA"):
        made = colours.convert(mode)
        made.putalpha(Image.fromarray(noise(height, width, seed + 1)[:, :, 0]))
        return made
    if mode == "P":
        made = colours.quantize(32)
        made.info["transparency"] = bytes(range(32))
        return made
    return colours.convert(mode)


def encoded(image: Image.Image, file_format: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, file_format, **options)
    return buffer.getvalue()


def exif(orientation: int) -> bytes:
    made = Image.Exif()
    made[0x0112] = orientation
    return made.tobytes()


def xmp(orientation: int) -> bytes:
    return f'<x:xmpmeta><rdf:Description tiff:Orientation="{orientation}"/></x:xmpmeta>'.encode()


def video(
    frames: int = 5,
    fps: Fraction | int = 10,
    codec: str = "ffv1",
    container: str = "matroska",
    pixel_format: str = "bgr0",
    height: int = 48,
    width: int = 64,
    **options: str,
) -> bytes:
    """Frame i is noise with seed i. The default codec loses nothing."""
    buffer = io.BytesIO()
    with av.open(buffer, "w", format=container) as output:
        stream = output.add_stream(codec, rate=fps, options=options)
        stream.width, stream.height, stream.pix_fmt = width, height, pixel_format
        for index in range(frames):
            frame = av.VideoFrame.from_ndarray(noise(height, width, index), format="rgb24")
            output.mux(stream.encode(frame))
        output.mux(stream.encode())
    return buffer.getvalue()
