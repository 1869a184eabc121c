"""Questions that are meant to hurt: files of folders as images and as videos, bodies that are not what they should be, and now
and then a picture so large that a helper process decodes it.

A server may refuse them (4xx) or answer; anything else is its mistake.
"""

import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from sightline.bench.load.body import Medium, image_part, pieces_of, text_part, video_part
from sightline.errors import ConfigError

_LARGEST = 32 << 20  # bytes of a file
_ODD_FIELDS: tuple[dict[str, Any], ...] = (
    {"messages": 3},
    {"chat_template_kwargs": {"self": 1}},
    {"n": 10**12},
    {"logit_bias": {"x": 1}},
    {"response_format": {"type": "regex", "regex": "(a|b)*(" + "x" * 200}},
    {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"$ref": "#"}}}], "tool_choice": "required"},
    {"temperature": -1},
    {"max_tokens": 2**40},
    {"stop": [""]},
)
_HUGE_SIDE, _HUGE_SHARE = 7000, 0.03
_BROKEN = (b"", b"{", b"[]", b"null", b'{"messages":' + b"[" * 500, b"\xff\xfe", b'{"model": "\\ud800"}')


class HostileMix:
    def __init__(self, folders: Sequence[Path], model: str) -> None:
        every = [path for folder in folders for path in sorted(folder.rglob("*"))]
        found = [path for path in every if path.is_file() and 0 < path.stat().st_size <= _LARGEST]
        self._files = [path for path in found if path.suffix.lower() not in (".json", ".md", ".txt", ".py")]
        self._model = model
        self._huge = _huge_picture()
        if not self._files:
            raise ConfigError(f"--hostile names {', '.join(map(str, folders))}: there is no file.")

    def body(self, random: np.random.Generator) -> tuple[bytes, ...]:
        """One of them."""
        choice = random.random()
        if choice < 0.1:
            return (_BROKEN[int(random.integers(len(_BROKEN)))],)
        ask: dict[str, Any] = {"model": self._model, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}
        if choice < 0.2:
            odd = _ODD_FIELDS[int(random.integers(len(_ODD_FIELDS)))]
            return (json.dumps({**ask, **odd}).encode(),)
        if choice < 0.2 + _HUGE_SHARE:
            part = image_part(Medium.of(self._huge + random.bytes(8), "image/jpeg"))  # one that no cache knows
        else:
            path = self._files[int(random.integers(len(self._files)))]
            medium = Medium.of(path.read_bytes(), "application/octet-stream")
            part = video_part(medium) if random.random() < 0.3 else image_part(medium)
        return pieces_of({**ask, "messages": [{"role": "user", "content": [part, text_part("What?")]}]})


def _huge_picture() -> bytes:
    buffer = io.BytesIO()
    Image.new("L", (_HUGE_SIDE, _HUGE_SIDE), 99).save(buffer, "JPEG")
    return buffer.getvalue()
