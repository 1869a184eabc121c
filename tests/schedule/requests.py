"""Requests built by hand for tests of the scheduler: no pixels, no tokenizer, only the numbers that scheduling depends on."""

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from hashlib import sha256

import numpy as np

from sightline.types import ImageHeader, MediaItem, MediaRef, MediaSpan, Request, View

VISION_TOKEN = 0  # the same for every row of every item, as in a real prompt


@dataclass(frozen=True)
class Picture:
    """An item of which only the counts matter. With several spans a text token stands between them, as in a video."""

    name: int
    rows: int
    patches: int
    spans: int = 1


Piece = tuple[int, ...] | Picture  # a run of text tokens, or an item


def make_item(picture: Picture) -> MediaItem:
    source = f"picture {picture.name}"
    digest = sha256(source.encode()).digest()
    kind = "image" if picture.spans == 1 else "video"
    ref = MediaRef(kind, b"", digest, ImageHeader("PNG", 1, 1, 1), source)
    return MediaItem(ref, digest, (View.whole((1, 1)),), ((1, 1, picture.patches),), (), (), picture.rows)


def make_request(pieces: Seq[Piece]) -> Request:
    tokens: list[int] = []
    items: list[MediaItem] = []
    spans: list[MediaSpan] = []
    for piece in pieces:
        if not isinstance(piece, Picture):
            tokens += piece
            continue
        row = 0
        for number in range(piece.spans):
            count = (piece.rows - row) // (piece.spans - number)
            if number:
                tokens.append(1)
            spans.append(MediaSpan(len(items), len(tokens), count, row))
            tokens += [VISION_TOKEN] * count
            row += count
        items.append(make_item(piece))
    positions = np.broadcast_to(np.arange(len(tokens), dtype=np.int32), (3, len(tokens)))
    return Request(np.array(tokens, np.int32), positions, 0, tuple(items), tuple(spans))
