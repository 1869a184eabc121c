"""Pictures for requests, made here."""

import base64
import io
from typing import Any

import numpy as np
from PIL import Image


def png(seed: int, width: int = 96, height: int = 64) -> bytes:
    """A picture of blocks of colour, another one for each seed."""
    return _picture(seed, width, height, "PNG")


def jpeg(seed: int, progressive: bool = False) -> bytes:
    return _picture(seed, 96, 64, "JPEG", progressive=progressive)


def _picture(seed: int, width: int, height: int, kind: str, **options: Any) -> bytes:
    colours = np.random.default_rng(seed).integers(0, 255, (height // 8, width // 8, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(colours.repeat(8, axis=0).repeat(8, axis=1)).save(buffer, kind, **options)
    return buffer.getvalue()


def data_url(data: bytes, kind: str = "image/png") -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def image_part(source: int | bytes, **fields: Any) -> dict[str, Any]:
    data = png(source) if isinstance(source, int) else source
    return {"type": "image_url", "image_url": {"url": data_url(data)}, **fields}


def text_part(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}
