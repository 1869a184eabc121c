"""An example as chat messages: pictures first, then its questions with the right answers to all but the last."""

import io
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from PIL import Image

from sightline.evals.signs.example import Example, Pixels

Conversation = list[dict[str, Any]]


def conversations(example: Example) -> list[Conversation]:
    """One per turn. A wrong answer to one question cannot spoil the next: what came before is always right."""
    media: list[Mapping[str, Any]] = [{"type": "image", "image": Image.fromarray(image)} for image in example.images]
    if example.frames is not None:
        media.append({"type": "video", "video": encode_clip(example.frames, example.fps)})
    found: list[Conversation] = []
    history: Conversation = []
    for number, turn in enumerate(example.turns):
        parts = [*(media if number == 0 else ()), {"type": "text", "text": turn.question}]
        history = [*history, {"role": "user", "content": parts}]
        found.append(history)
        history = [*history, {"role": "assistant", "content": turn.answer}]
    return found


def encode_clip(frames: Pixels, fps: float) -> bytes:
    """[frames, height, width, 3] as FFV1 in Matroska, which gives back the same pixels. The same frames give the same bytes."""
    import av  # loads all of ffmpeg, which pictures do without

    encoded = io.BytesIO()
    exact = {"fflags": "+bitexact"}  # no random ids, no time of writing
    with av.open(encoded, "w", format="matroska", container_options=exact) as container:
        stream = container.add_stream("ffv1", rate=Fraction(fps).limit_denominator(1000))
        stream.height, stream.width, stream.pix_fmt = frames.shape[1], frames.shape[2], "bgr0"
        for frame in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode(None))
    return encoded.getvalue()
