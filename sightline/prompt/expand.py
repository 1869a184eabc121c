"""From a rendered prompt, where each image or video is one placeholder, to token ids, where it is as many ids as it has rows.

Two ideas. Text that depends on a medium (the times between the frames of a video) is written into the string before it is
encoded, so that it is tokenised together with its neighbours. Placeholders are multiplied after encoding, as ids: the string
holds one pad per run, never thousands. What is written, and how many runs it has, is the family's to say (`prompt_form`).

```
rendered   …<|vision_start|><|video_pad|><|vision_end|>…
short      …<0.2 seconds><|vision_start|><|video_pad|><|vision_end|><1.2 seconds><|vision_start|><|video_pad|><|vision_end|>…
ids        …  t  t  t  t  start pad×rows end  t  t  t  t  start pad×rows end …      a MediaSpan per run of pads
```
"""

import functools
import re
from collections.abc import Iterator, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from sightline.errors import PromptError
from sightline.prompt.tokenizer import Tokenizer
from sightline.spec import MediaTokens, ProcessorSpec
from sightline.types import MediaItem, MediaSpan, PromptForm


def expand(
    prompt: str, items: Sequence[MediaItem], processor: ProcessorSpec, tokens: MediaTokens, tokenizer: Tokenizer
) -> tuple[NDArray[np.int32], tuple[MediaSpan, ...]]:
    """Token ids [tokens] of a prompt with one placeholder per item, and where each item's rows stand in them."""
    forms = [processor.prompt_form(item) for item in items]
    for item, form in zip(items, forms, strict=True):
        assert sum(form.runs) == item.rows, f"{item.ref.source} has {item.rows} rows, and its prompt form {sum(form.runs)}"
    short = _write_short_forms(prompt, [item.ref.kind for item in items], forms, processor)
    ids = np.asarray(tokenizer.encode(short), dtype=np.int32)
    pads = np.flatnonzero(np.isin(ids, tokens.pads))
    counts = [count for form in forms for count in form.runs]
    if len(pads) != len(counts):
        # The string had the right placeholders, so the tokenizer does not read them as single special tokens.
        raise PromptError(
            f"{tokenizer.origin} encodes the placeholders of {len(items)} images and videos to {len(pads)} ids "
            f"where {len(counts)} belong."
        )
    lengths = np.ones(len(ids), dtype=np.int64)
    lengths[pads] = counts
    starts = iter((np.cumsum(lengths) - lengths)[pads].tolist())
    return np.repeat(ids, lengths), tuple(_spans(forms, starts))


def _spans(forms: Sequence[PromptForm], starts: Iterator[int]) -> Iterator[MediaSpan]:
    for index, form in enumerate(forms):
        row = 0
        for count in form.runs:
            yield MediaSpan(item=index, start=next(starts), count=count, row=row)
            row += count


def _write_short_forms(prompt: str, kinds: Sequence[str], forms: Sequence[PromptForm], processor: ProcessorSpec) -> str:
    """Replaces each placeholder by its item's short form, after checking that placeholders and items agree one by one."""
    found = _found(prompt, processor)
    _check_match(placeholder_kinds(prompt, processor), kinds)
    pieces = []
    end = 0
    for match, form in zip(found, forms, strict=True):
        pieces += [prompt[end : match.start()], form.text]
        end = match.end()
    return "".join([*pieces, prompt[end:]])


def placeholder_kinds(prompt: str, processor: ProcessorSpec) -> list[Literal["image", "video"]]:
    """Of the media that a prompt has places for, in order."""
    images = processor.placeholders("image")
    return ["image" if match[0] in images else "video" for match in _found(prompt, processor)]


def _found(prompt: str, processor: ProcessorSpec) -> list[re.Match[str]]:
    return list(_pattern(processor.placeholders("image") + processor.placeholders("video")).finditer(prompt))


@functools.lru_cache(maxsize=16)
def _pattern(placeholders: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, placeholders)))


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
