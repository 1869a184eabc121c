"""From messages, or from a prompt that is already text, to a complete `Request`. Media are known by their headers only."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sightline.config import MediaConfig
from sightline.errors import PromptError, PromptTooLongError
from sightline.media.item import make_image_item, make_video_item
from sightline.media.limits import RequestBudget
from sightline.media.source import load_image, load_video
from sightline.prompt.expand import MediaText, expand
from sightline.prompt.messages import normalise_messages, refuse_placeholders
from sightline.prompt.positions import mrope_positions
from sightline.prompt.template import ChatTemplate
from sightline.prompt.tokenizer import Tokenizer
from sightline.spec import ModelSpec, ProcessorSpec
from sightline.timing import StageClock
from sightline.types import MediaItem, MediaRef, MediaSpan, Message, Request


def build_request(
    messages: Sequence[Message],
    *,
    template: ChatTemplate,
    tokenizer: Tokenizer,
    spec: ModelSpec,
    processor: ProcessorSpec,
    limits: MediaConfig,
    tools: Sequence[Mapping[str, Any]] | None = None,
    template_kwargs: Mapping[str, Any] | None = None,
    max_len: int | None = None,
    clock: StageClock | None = None,
) -> Request:
    """A chat as a request. `max_len` bounds tokens and positions; without it the model's own limit does.

    `clock` is told the time of each stage: fetch, header, prompt.
    """
    clock = clock or StageClock()
    placeholders = MediaText.of(spec.tokens, tokenizer).placeholders
    kwargs = dict(template_kwargs or {})
    for name in ("messages", "tools"):
        if name in kwargs:
            raise PromptError(f"template_kwargs cannot set {name!r}.")
    refuse_placeholders(kwargs, "template_kwargs", placeholders)
    refuse_placeholders(tools, "tools", placeholders)
    with clock.stage("prompt"):
        for_template, media = normalise_messages(messages, placeholders)
        prompt = template.render(for_template, tools=tools, **kwargs)
    return build_request_from_text(
        prompt, media, tokenizer=tokenizer, spec=spec, processor=processor, limits=limits, max_len=max_len, clock=clock
    )


def build_request_from_text(
    prompt: str,
    media: Sequence[tuple[str, Any]] = (),
    *,
    tokenizer: Tokenizer,
    spec: ModelSpec,
    processor: ProcessorSpec,
    limits: MediaConfig,
    max_len: int | None = None,
    clock: StageClock | None = None,
) -> Request:
    """A prompt that holds one placeholder per medium, and the media as (kind, source) in the same order."""
    clock = clock or StageClock()
    budget = RequestBudget(limits)
    budget.take_items(kind for kind, _ in media)
    items = [load_item(kind, source, processor, limits, clock, budget) for kind, source in media]
    with clock.stage("prompt"):
        return assemble(prompt, items, tokenizer=tokenizer, spec=spec, processor=processor, max_len=max_len)


def load_item(
    kind: str,
    source: Any,
    processor: ProcessorSpec,
    limits: MediaConfig,
    clock: StageClock | None = None,
    budget: RequestBudget | None = None,
) -> MediaItem:
    """Fetches one medium and reads its header; its pixels stay encoded. `budget` counts for a whole request."""
    if kind == "image":
        return make_item(load_image(source, limits, clock, budget), processor, budget)
    if kind == "video":
        return make_item(load_video(source, limits, clock, budget), processor, budget)
    raise PromptError(f"A medium has kind {kind!r}; it must be 'image' or 'video'.")


def make_item(ref: MediaRef, processor: ProcessorSpec, budget: RequestBudget | None = None) -> MediaItem:
    """What follows from a header. `budget` counts the frames of a whole request."""
    if ref.kind == "image":
        return make_image_item(ref, processor.image)
    item = make_video_item(ref, processor.video)
    if budget is not None:
        budget.take_frames(len(item.frame_indices))
    return item


def assemble(
    prompt: str,
    items: Sequence[MediaItem],
    *,
    tokenizer: Tokenizer,
    spec: ModelSpec,
    processor: ProcessorSpec,
    max_len: int | None = None,
) -> Request:
    """The request for a prompt whose media are loaded. No input or output: fit for any thread."""
    limit = spec.text.max_position if max_len is None else max_len
    refuse_far_too_long(prompt, tokenizer, limit)
    token_ids, spans = expand(prompt, items, spec.tokens, processor.video.style, tokenizer)
    return _complete(token_ids, items, spans, spec, processor, max_len)


def refuse_far_too_long(prompt: str, tokenizer: Tokenizer, limit: int) -> None:
    """Encoding takes a hundred times the memory of the text: what is far beyond the limit is refused without it."""
    if (least := tokenizer.least_tokens(len(prompt))) > limit:
        raise PromptTooLongError(f"The prompt has {least} tokens or more, more than the limit of {limit}.")
    beginning = prompt[: 16 * limit]  # three or four times the limit in most languages; of long runs of blanks it may be less
    if len(beginning) < len(prompt) and (count := len(tokenizer.encode(beginning))) > 2 * limit:
        whole = count * len(prompt) // len(beginning)
        raise PromptTooLongError(f"The prompt has about {whole} tokens, more than the limit of {limit}.")


def request_from_ids(
    token_ids: Sequence[int], spec: ModelSpec, processor: ProcessorSpec, max_len: int | None = None
) -> Request:
    """The request for a prompt that is given as token ids. It can have no media."""
    ids = np.asarray(token_ids, dtype=np.int64)
    wrong = np.flatnonzero((ids < 0) | (ids >= spec.text.vocab_size))
    if len(wrong):
        raise PromptError(f"The prompt has token {ids[wrong[0]]}, but ids must be between 0 and {spec.text.vocab_size - 1}.")
    media = np.flatnonzero(np.isin(ids, (spec.tokens.image, spec.tokens.video, spec.tokens.video_row)))
    if len(media):
        raise PromptError(f"The prompt has token {ids[media[0]]}, which stands for an image or video that is not there.")
    return _complete(ids.astype(np.int32), (), (), spec, processor, max_len)


def _complete(
    token_ids: NDArray[np.int32],
    items: Sequence[MediaItem],
    spans: tuple[MediaSpan, ...],
    spec: ModelSpec,
    processor: ProcessorSpec,
    max_len: int | None,
) -> Request:
    limit = spec.text.max_position if max_len is None else max_len
    style = processor.video.style
    length = len(token_ids)
    if length == 0:
        raise PromptError("The prompt is empty.")
    if length > limit:
        raise PromptTooLongError(f"The prompt has {length} tokens, more than the limit of {limit}.")
    positions, delta = mrope_positions(length, items, spans, spec.vision.merge_size, style, processor.video.tokens_per_second)
    # Positions run ahead of tokens only where a video's clock does.
    if length + delta > limit:
        raise PromptTooLongError(f"The prompt's positions reach {length + delta}, more than the limit of {limit}.")
    return Request(token_ids=token_ids, positions=positions, position_delta=delta, items=tuple(items), spans=spans)
