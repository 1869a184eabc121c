"""Which sources of a video are lists of frames, and of what they are made up.

```
[source, …]                              anything that an image can come from: paths, URLs, bytes, PIL images
array [frames, height, width, 3]         uint8, as vLLM takes it; (array, {"fps": …}) with its rate
data:video/jpeg;base64,A,B,C             JPEGs with commas between them, as vLLM's clients send it
```
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

from sightline.errors import MediaError
from sightline.media.frames import FPS
from sightline.media.source_names import display_name

_JPEGS = re.compile(r"data:video/jpeg;base64,", re.IGNORECASE)


@dataclass(frozen=True)
class FrameSources:
    name: str
    sources: Sequence[Any]  # of images
    fps: float = FPS


def frames_of(source: Any) -> FrameSources | None:
    """None: the source is a file."""
    if isinstance(source, str):
        found = _JPEGS.match(source)
        if found is None:
            return None
        return FrameSources(
            display_name(source), [f"data:image/jpeg;base64,{part}" for part in source[found.end() :].split(",")]
        )
    if isinstance(source, tuple) and len(source) == 2 and isinstance(source[1], Mapping):
        inner = frames_of(source[0])
        if inner is None:
            raise MediaError("The video cannot be read: only a list or an array of frames comes with metadata beside it.")
        return FrameSources(inner.name, inner.sources, _rate(source[1].get("fps", FPS)))
    if isinstance(source, np.ndarray):
        if source.ndim != 4 or source.shape[3] != 3 or source.dtype != np.uint8:
            raise MediaError(
                f"The video cannot be read: an array of frames must be uint8 [frames, height, width, 3], not {source.dtype} "
                f"{list(source.shape)}."
            )
        return FrameSources("<array>", [Image.fromarray(frame) for frame in source])
    if isinstance(source, list | tuple):
        frames = [Image.fromarray(frame) if isinstance(frame, np.ndarray) else frame for frame in source]
        return FrameSources(f"<list of {len(frames)} frames>", frames)
    return None


def _rate(fps: Any) -> float:
    if isinstance(fps, bool) or not isinstance(fps, int | float) or not 0 < fps < float("inf"):
        raise MediaError(f"The video cannot be read: its metadata have fps {fps!r}, which must be a number above 0.")
    return float(fps)
