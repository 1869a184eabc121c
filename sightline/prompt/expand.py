"""From a rendered prompt, where each image or video is one placeholder, to token ids, where it is as many ids as it has rows.

Two ideas. Text that depends on a medium (the times between the frames of a video) is written into the string before it is
encoded, so that it is tokenised together with its neighbours. Placeholders are multiplied after encoding, as ids: the string
holds one pad per run, never thousands.

```
rendered   …<|vision_start|><|video_pad|><|vision_end|>…
short      …<0.2 seconds><|vision_start|><|video_pad|><|vision_end|><1.2 seconds><|vision_start|><|video_pad|><|vision_end|>…
ids        …  t  t  t  t  start pad×rows end  t  t  t  t  start pad×rows end …      a MediaSpan per run of pads
```
"""

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from sightline.errors import PromptError
from sightline.prompt.tokenizer import Tokenizer
from sightline.spec import MediaTokens
from sightline.types import MediaItem, MediaSpan

VideoStyle = Literal["qwen2_5", "qwen3", "glm"]


@dataclass(frozen=True)
class MediaText:
    """The media tokens of a family as they are written in a prompt."""

    image: str
    video: str
    video_row: str
    image_start: str
    image_end: str
    video_start: str
    video_end: str

    @classmethod
    def of(cls, tokens: MediaTokens, tokenizer: Tokenizer) -> "MediaText":
        name = tokenizer.token_of
        return cls(
            image=name(tokens.image),
            video=name(tokens.video),
            video_row=name(tokens.video_row),
            image_start=name(tokens.image_start),
            image_end=name(tokens.image_end),
            video_start=name(tokens.video_start),
            video_end=name(tokens.video_end),
        )

    @property
    def placeholders(self) -> tuple[str, ...]:
        """What user text must not contain."""
        return tuple(dict.fromkeys((self.image, self.video, self.video_row)))


def expand(
    prompt: str,
    items: Sequence[MediaItem],
    tokens: MediaTokens,
    style: VideoStyle,
    tokenizer: Tokenizer,
) -> tuple[NDArray[np.int32], tuple[MediaSpan, ...]]:
    """Token ids [tokens] of a prompt with one placeholder per item, and where each item's rows stand in them."""
    text = MediaText.of(tokens, tokenizer)
    short = _write_short_forms(prompt, items, text, style)
    runs = [run for index, item in enumerate(items) for run in _runs(index, item, tokens, style)]
    ids = np.asarray(tokenizer.encode(short), dtype=np.int32)
    pads = np.flatnonzero((ids == tokens.image) | (ids == tokens.video) | (ids == tokens.video_row))
    if ids[pads].tolist() != [run.token for run in runs]:
        # The string had the right placeholders, so the tokenizer does not read them as single special tokens.
        raise PromptError(
            f"{tokenizer.origin} encodes the placeholders of {len(items)} images and videos to {len(pads)} ids "
            f"where {len(runs)} belong."
        )
    lengths = np.ones(len(ids), dtype=np.int64)
    lengths[pads] = [run.count for run in runs]
    starts = (np.cumsum(lengths) - lengths)[pads]
    spans = tuple(
        MediaSpan(item=run.item, start=int(start), count=run.count, row=run.row)
        for run, start in zip(runs, starts, strict=True)
    )
    return np.repeat(ids, lengths), spans


@dataclass(frozen=True)
class _Run:
    """One pad of the short form: `count` rows of an item, the first of them `row`."""

    item: int
    token: int
    count: int
    row: int


def _runs(index: int, item: MediaItem, tokens: MediaTokens, style: VideoStyle) -> list[_Run]:
    if item.ref.kind == "image":
        return [_Run(index, tokens.image, item.rows, 0)]
    if style == "qwen2_5":
        return [_Run(index, tokens.video_row, item.rows, 0)]
    groups = item.grid[0]
    rows = item.rows // groups
    return [_Run(index, tokens.video_row, rows, group * rows) for group in range(groups)]


def _write_short_forms(prompt: str, items: Sequence[MediaItem], text: MediaText, style: VideoStyle) -> str:
    """Replaces each placeholder by its item's short form, after checking that placeholders and items agree one by one."""
    found = list(_placeholder_pattern(text, style).finditer(prompt))
    _check_match([_kind_of(place[0], text) for place in found], [item.ref.kind for item in items])
    pieces = []
    end = 0
    for place, item in zip(found, items, strict=True):
        pieces += [prompt[end : place.start()], _short_form(item, text, style)]
        end = place.end()
    return "".join([*pieces, prompt[end:]])


@functools.lru_cache(maxsize=16)
def _placeholder_pattern(text: MediaText, style: VideoStyle) -> re.Pattern[str]:
    triplet = re.escape(text.video_start + text.video + text.video_end)
    pattern = f"{re.escape(text.image)}|{re.escape(text.video)}"
    # The short form of this style brings its own start and end for every group, so the outer ones go.
    return re.compile(f"{triplet}|{pattern}" if style == "qwen3" else pattern)


def _kind_of(placeholder: str, text: MediaText) -> Literal["image", "video"]:
    return "image" if placeholder == text.image else "video"


def _check_match(placeholders: Sequence[str], media: Sequence[str]) -> None:
    for kind in ("image", "video"):
        written, given = placeholders.count(kind), media.count(kind)
        if written != given:
            raise PromptError(f"The prompt has placeholders for {kind}s: {written}, but {kind}s were given: {given}.")
    for index, (written_kind, given_kind) in enumerate(zip(placeholders, media, strict=True)):
        if written_kind != given_kind:
            raise PromptError(
                f"Placeholder {index} of the prompt has kind {written_kind!r}, but medium {index} is of kind {given_kind!r}."
            )


def _short_form(item: MediaItem, text: MediaText, style: VideoStyle) -> str:
    if item.ref.kind == "image":
        return text.image
    if style == "qwen2_5":
        return text.video_row
    if style == "qwen3":
        frame = text.video_start + text.video_row + text.video_end
        return "".join(f"<{(first + last) / 2:.1f} seconds>{frame}" for first, last in _group_times(item))
    frame = text.image_start + text.video_row + text.image_end
    return "".join(f"{frame}{int(first)}" for first, _ in _group_times(item))


def _group_times(item: MediaItem) -> list[tuple[float, float]]:
    """Seconds of the first and the last frame of each temporal group."""
    groups = item.grid[0]
    size, rest = divmod(len(item.frame_times), groups)
    assert size > 0 and rest == 0, f"{len(item.frame_times)} frame times for {groups} groups"
    return [(item.frame_times[at], item.frame_times[at + size - 1]) for at in range(0, len(item.frame_times), size)]
