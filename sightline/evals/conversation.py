"""Conversations as the library takes them, as a server takes them, and by digest.

The library's form has {"type": "image", "image": bytes or PIL image} and {"type": "video", "video": bytes}.
"""

import hashlib
import io
import json
import re
from collections.abc import Callable, Mapping
from typing import Any

import pybase64
from PIL import Image

from sightline.errors import MediaError

Conversation = list[dict[str, Any]]
Part = Mapping[str, Any]

_VIDEO_TYPE = "video/x-matroska"  # what evaluations encode their clips as


def user_message(text: str, images: Mapping[str, bytes], marks: re.Pattern[str] | None = None) -> Conversation:
    """One turn with each image where `marks` first names it (by its first group), or before the text if nothing names it.

    Images are keyed by what the marks call them. A second mark of the same image stays text.
    """
    parts: list[Part] = []
    left = dict(images)
    start = 0
    for mark in marks.finditer(text) if marks is not None else ():
        image = left.pop(mark[1], None)
        if image is not None:
            parts += [*_text(text[start : mark.start()]), {"type": "image", "image": image}]
            start = mark.end()
    unnamed = [{"type": "image", "image": image} for image in left.values()]
    return [{"role": "user", "content": [*unnamed, *parts, *_text(text[start:])]}]


def _text(text: str) -> list[Part]:
    return [{"type": "text", "text": text}] if text.strip() else []


def digest(conversation: Conversation) -> str:
    """The same for the same texts and encoded media, in hexadecimal."""
    listed = _with_media(conversation, lambda kind, medium: {"type": kind, kind: hashlib.sha256(_raw(medium)).hexdigest()})
    return hashlib.sha256(json.dumps(listed, sort_keys=True).encode()).hexdigest()


def as_openai(conversation: Conversation) -> Conversation:
    """With media as data URLs, as any OpenAI-compatible server takes them."""
    return _with_media(conversation, _url_part)


def _with_media(conversation: Conversation, change: Callable[[str, Any], Part]) -> Conversation:
    changed = []
    for message in conversation:
        content = message["content"]
        if not isinstance(content, str):
            content = [part if part["type"] == "text" else change(part["type"], part[part["type"]]) for part in content]
        changed.append({**message, "content": content})
    return changed


def _url_part(kind: str, medium: Any) -> Part:
    if kind == "video":
        media_type, encoded = _VIDEO_TYPE, medium
    elif isinstance(medium, Image.Image):
        media_type, encoded = "image/png", _as_png(medium)
    else:
        media_type, encoded = _image_type(medium), medium
    url = f"data:{media_type};base64,{pybase64.b64encode(encoded).decode()}"
    return {"type": f"{kind}_url", f"{kind}_url": {"url": url}}


def _image_type(encoded: bytes) -> str:
    try:
        with Image.open(io.BytesIO(encoded)) as image:
            return image.get_format_mimetype() or "application/octet-stream"
    except (OSError, ValueError, Image.DecompressionBombError) as error:
        raise MediaError(f"An image of {len(encoded)} bytes cannot be read: {error}.") from None


def _as_png(image: Image.Image) -> bytes:
    encoded = io.BytesIO()
    image.save(encoded, "PNG")
    return encoded.getvalue()


def _raw(medium: Any) -> bytes:
    if isinstance(medium, Image.Image):
        return f"{medium.mode} {medium.size} ".encode() + medium.tobytes()
    assert isinstance(medium, bytes)
    return medium
