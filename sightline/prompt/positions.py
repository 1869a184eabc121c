"""Three-axis rotary positions of a prompt, the same for every family.

Text advances all axes by one. A span of rows of an image or video is a block of groups × gh × gw, whose axes are numbered from
the position p at which it starts:

```
time    p + floor(group * tokens_per_second * seconds_per_group)
height  p + row
width   p + column            next text: one more than the largest number on any axis
```

What differs between families is only how many groups a span has, and that is settled when the prompt is expanded:
| span | groups | time |
|---|---|---|
| image | 1 | p |
| video, qwen3 and glm (a span per group, with text between) | 1 | p |
| video, qwen2_5 (one span) | all | runs with the clock, as above |
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sightline.media.sampling import seconds_per_group
from sightline.prompt.expand import VideoStyle
from sightline.types import MediaItem, MediaSpan


def mrope_positions(
    length: int,
    items: Sequence[MediaItem],
    spans: Sequence[MediaSpan],
    merge_size: int,
    video_style: VideoStyle,
    tokens_per_second: float,
) -> tuple[NDArray[np.int32], int]:
    """Positions [3, length] and the delta: token n >= length, on all axes, is at n + delta."""
    positions = np.empty((3, length), dtype=np.int32)
    token = 0  # tokens[:token] have their positions
    position = 0  # what the next token gets if it is text
    for span in spans:
        text = span.start - token
        positions[:, token : span.start] = np.arange(position, position + text, dtype=np.int32)
        position += text
        item = items[span.item]
        gh, gw = item.grid[1] // merge_size, item.grid[2] // merge_size
        groups = span.count // (gh * gw)
        assert groups * gh * gw == span.count, f"{span.count} rows are no whole number of {gh} x {gw} groups"
        block = positions[:, span.start : span.start + span.count].reshape(3, groups, gh, gw)
        if groups == 1:
            times = np.zeros(1, dtype=np.int32)
        else:
            assert video_style == "qwen2_5", f"a {video_style} video has a span per group"
            times = _clock(groups, seconds_per_group(item), tokens_per_second)
        block[0] = position + times[:, None, None]
        block[1] = position + np.arange(gh, dtype=np.int32)[None, :, None]
        block[2] = position + np.arange(gw, dtype=np.int32)[None, None, :]
        token = span.start + span.count
        position += max(int(times[-1]) + 1, gh, gw)
    positions[:, token:] = np.arange(position, position + length - token, dtype=np.int32)
    return positions, position + (length - token) - length


def _clock(groups: int, seconds: float, tokens_per_second: float) -> NDArray[np.int32]:
    """Numbers of the groups of a video on the time axis, from 0.

    In float32, as every reference implementation: there a spacing of 0.9999999999999998 s, from a frame rate that was divided
    and multiplied back, is a whole second, where float64 would floor it one too low.
    """
    moments = np.arange(groups, dtype=np.float32) * np.float32(seconds) * np.float32(tokens_per_second)
    return moments.astype(np.int32)
