"""Three-axis rotary positions of a prompt.

Text advances all axes by one. What the rows of an image or video advance them by, and where they are from the position p at
which they start, is the family's to say. For those that number a grid of groups × gh × gw rows by its axes:

```
time    p + times[group]
height  p + row
width   p + column            next text: one more than the largest number on any axis
```
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sightline.spec import ProcessorSpec
from sightline.types import MediaItem, MediaSpan, RunPositions


def prompt_positions(
    length: int, items: Sequence[MediaItem], spans: Sequence[MediaSpan], processor: ProcessorSpec
) -> tuple[NDArray[np.int32], int]:
    """Positions [3, length] and the delta: token n >= length, on all axes, is at n + delta."""
    positions = np.empty((3, length), dtype=np.int32)
    token = 0  # tokens[:token] have their positions
    position = 0  # what the next token gets if it is text
    for span in spans:
        text = span.start - token
        positions[:, token : span.start] = np.arange(position, position + text, dtype=np.int32)
        position += text
        token = span.start + span.count
        run = processor.positions(items[span.item], span)
        positions[:, span.start : token] = run.offsets + np.int32(position)
        position += run.advance
    positions[:, token:] = np.arange(position, position + length - token, dtype=np.int32)
    return positions, position + (length - token) - length


def grid_positions(times: NDArray[np.int32], gh: int, gw: int) -> RunPositions:
    """Of len(times) groups of gh x gw rows, numbered by their axes as above."""
    offsets = np.empty((3, len(times), gh, gw), dtype=np.int32)
    offsets[0] = times[:, None, None]
    offsets[1] = np.arange(gh, dtype=np.int32)[None, :, None]
    offsets[2] = np.arange(gw, dtype=np.int32)[None, None, :]
    return RunPositions(offsets.reshape(3, -1), max(int(times[-1]) + 1, gh, gw))
