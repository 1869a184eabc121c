"""Frames of a video that equal earlier ones: of a screen recording most do. Only the others go through the tower.

What the tower sees at once is a group of frames, those of one temporal patch. No patch attends to one of another group, and
groups are told apart by their pixels alone, so that equal groups have equal embeddings.
"""

import zlib
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from sightline.encoder.decoding.pixels import Pixels

_SAMPLED = 16  # every so many rows and columns are compared first, which tells a camera's frames apart at once
_MOST_ALIKE = 8  # groups with one checksum that are compared in full; equal ones are among the first


def find_repeats(frames: NDArray[np.uint8], groups: int) -> tuple[int, ...]:
    """For each of `groups` groups of frames [frames, height, width, 3], the first one with the same pixels: often itself."""
    if groups < 2 or len(frames) % groups:
        return tuple(range(groups))
    grouped = frames.reshape(groups, -1, *frames.shape[1:])
    by_sample: dict[bytes, list[int]] = {}
    checksums: dict[int, int] = {}
    found = []
    for index, group in enumerate(grouped):
        sample = np.ascontiguousarray(group[:, ::_SAMPLED, ::_SAMPLED]).tobytes()
        alike = by_sample.setdefault(sample, [])
        if alike:
            for known in (*alike, index):
                if known not in checksums:
                    checksums[known] = zlib.crc32(np.ascontiguousarray(grouped[known]).data)
            same = [known for known in alike if checksums[known] == checksums[index]][:_MOST_ALIKE]
            first = next((known for known in same if np.array_equal(grouped[known], group)), index)
        else:
            first = index
        if first == index:
            alike.append(index)
        found.append(first)
    return tuple(found)


def drop_repeats(pixels: Pixels, groups: int) -> Pixels:
    """Of a video that was just decoded: the groups that differ move to the front, in the memory where they are."""
    firsts = find_repeats(pixels.frames, groups)
    kept = sorted(set(firsts))
    if len(kept) == groups:
        return pixels
    grouped = pixels.frames.reshape(groups, -1, *pixels.frames.shape[1:])
    place = {first: number for number, first in enumerate(kept)}
    for first, number in place.items():
        if first != number:
            grouped[number] = grouped[first]
    frames = grouped[: len(kept)].reshape(-1, *pixels.frames.shape[1:])
    return replace(pixels, frames=frames, groups=tuple(place[first] for first in firsts))
