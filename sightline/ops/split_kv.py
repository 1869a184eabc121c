"""Keys of sequences of very different lengths, shared out in parts of one size: a list of (sequence, part), made by the host.

Where all sequences are split into as many parts, either a long one is split too little or short ones too much.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray


@dataclass(frozen=True)
class SplitKV:
    """On the device, int32 each."""

    sequence: torch.Tensor  # [items], -1 where there is none
    part: torch.Tensor  # [items]
    first: torch.Tensor  # [sequences + 1]: the first item of each sequence
    size: torch.Tensor  # [1]: keys of a part


def make_split_kv(contexts: Sequence[int], items: int, multiple: int) -> dict[str, NDArray[np.int32]]:
    """The fields of SplitKV for `items` items, more than there are sequences; parts are of a multiple of so many keys."""
    lengths = np.asarray(contexts, np.int64)
    spare = items - len(lengths)
    assert spare > 0, f"{items} items for {len(lengths)} sequences"
    # Each sequence has at most one part that is not full, so these fit.
    size = max(1, -(-int(lengths.sum()) // (spare * multiple))) * multiple
    parts = -(-lengths // size)
    first = np.concatenate(([0], parts.cumsum())).astype(np.int32)
    sequence, part = np.full(items, -1, np.int32), np.zeros(items, np.int32)
    used = int(first[-1])
    sequence[:used] = np.repeat(np.arange(len(lengths)), parts)
    part[:used] = np.arange(used) - np.repeat(first[:-1], parts)
    return {"sequence": sequence, "part": part, "first": first, "size": np.array([size], np.int32)}
