"""Small real videos, encoded in the test."""

import io

import av
import numpy as np


def make_clip(frames: int, fps: int = 4, width: int = 96, height: int = 64, seed: int = 0) -> bytes:
    """A clip of drifting colours in an AVI with MPEG-4: one packet per frame, no frame dropped."""
    random = np.random.default_rng(seed)
    base = random.integers(0, 256, (height, width, 3)).astype(np.float64)
    for axis in (0, 1):  # smooth, so that the codec keeps most of it
        base = sum(np.roll(base, shift, axis) for shift in range(-6, 7)) / 13
    base = 255 * (base - base.min()) / (base.max() - base.min())
    target = io.BytesIO()
    with av.open(target, "w", format="avi") as container:
        stream = container.add_stream("mpeg4", rate=fps)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        for number in range(frames):
            image = np.roll(base, 5 * number, axis=1).astype(np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
        container.mux(stream.encode(None))
    return target.getvalue()
