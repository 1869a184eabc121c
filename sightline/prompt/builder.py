"""Prompts of every kind to a complete `Request`: the one way there, for the library, the server, benchmarks and warm-up.

```
chat        messages ──render──► text with a placeholder per medium ─┐
text        ────────────────────────────────────────────────────────┼─assemble──► Request
media       where they are ──load_item, or refs ──make_item──► items ┘
token ids   ───────────────────────────────────────────────────────────────────► Request
```
"""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sightline.config import MediaConfig
from sightline.errors import PromptError
from sightline.media.limits import RequestBudget
from sightline.media.source import load_media
from sightline.prompt.context_length import check_positions, check_tokens, longest_prompt, refuse_far_too_long
from sightline.prompt.expand import expand
from sightline.prompt.file_parts import read_file_part, with_pages
from sightline.prompt.items import load_item
from sightline.prompt.media_options import NO_REQUEST_OPTIONS, RequestOptions
from sightline.prompt.messages import MediaSource, normalise_messages, refuse_placeholders, with_text_content
from sightline.prompt.positions import prompt_positions
from sightline.prompt.template import ChatTemplate
from sightline.prompt.tokenizer import Tokenizer
from sightline.spec import ModelSpec, PatchTowerSpec, ProcessorSpec
from sightline.timing import StageClock
from sightline.types import EmbeddingsHeader, MediaItem, MediaRef, MediaSpan, Message, Request


@dataclass(frozen=True)
class PromptBuilder:
    """What a model's files say of prompts. Made once; fit for any thread."""

    template: ChatTemplate
    tokenizer: Tokenizer
    spec: ModelSpec
    processor: ProcessorSpec
    limits: MediaConfig
    max_model_len: int  # tokens of a prompt and its answer
    model: str  # its name, for messages

    # ---- Whole prompts; a clock is told the time of each stage: fetch, header, prompt

    def chat(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        options: RequestOptions = NO_REQUEST_OPTIONS,
        clock: StageClock | None = None,
    ) -> Request:
        clock, budget = clock or StageClock(), RequestBudget(self.limits)

        def pages(file: Any, where: str) -> list[MediaSource]:
            found = read_file_part(file, where)
            refs = load_media("pdf", found.source, self.limits, clock, budget, found.name)
            return [MediaSource("image", ref, found.options) for ref in refs]

        messages = with_pages(messages, pages)
        with clock.stage("prompt"):
            prompt, media = self.render(messages, tools, chat_template_kwargs)
        return self.text(prompt, media, options, clock, budget)

    def text(
        self,
        prompt: str,
        media: Sequence[tuple[str, Any] | MediaSource] = (),
        options: RequestOptions = NO_REQUEST_OPTIONS,
        clock: StageClock | None = None,
        budget: RequestBudget | None = None,
    ) -> Request:
        """A prompt that holds one placeholder per medium, and the media as (kind, source) in the same order. `budget` has been
        told of pages that are loaded."""
        clock = clock or StageClock()
        sources = [MediaSource(*medium) for medium in media]
        budget = self.budget_for([medium.kind for medium in sources if not isinstance(medium.source, MediaRef)], budget)
        processor = self.processor.with_images(sum(medium.kind == "image" for medium in sources))
        items = [
            load_item(kind, source, processor, self.limits, clock, budget, options.of(kind, own))
            for kind, source, own in sources
        ]
        with clock.stage("prompt"):
            return self.assemble(prompt, items)

    def token_ids(self, token_ids: Sequence[int]) -> Request:
        """A prompt that is given as token ids. It can have no media."""
        ids, vocab_size = np.asarray(token_ids, dtype=np.int64), self.spec.text.vocab_size
        wrong = np.flatnonzero((ids < 0) | (ids >= vocab_size))
        if len(wrong):
            raise PromptError(f"The prompt has token {ids[wrong[0]]}, but ids must be between 0 and {vocab_size - 1}.")
        media = np.flatnonzero(np.isin(ids, self.spec.tokens.pads))
        if len(media):
            raise PromptError(f"The prompt has token {ids[media[0]]}, which stands for an image or video that is not there.")
        return self._complete(ids.astype(np.int32), (), ())

    # ---- The steps, for callers who load media in their own way. No input or output

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        seconds: float | None = None,
    ) -> tuple[str, list[MediaSource]]:
        """The prompt as the template writes it, and the media in the order of their placeholders. `seconds` are what the
        template may take, by default what the messages explain."""
        kwargs = dict(chat_template_kwargs or {})
        for name in ("messages", "tools"):
            if name in kwargs:
                raise PromptError(f"chat_template_kwargs cannot set {name!r}.")
        refuse_placeholders(kwargs, "chat_template_kwargs", self._placeholders)
        refuse_placeholders(tools, "tools", self._placeholders)
        for_template, media = normalise_messages(messages, self._placeholders)
        for_template = with_text_content(for_template, self.processor.written)
        return self.template.render(for_template, seconds, tools=tools, **kwargs), media

    def budget_for(self, kinds: Sequence[str], budget: RequestBudget | None = None) -> RequestBudget:
        """For a request with media of these kinds, all of which the model must take."""
        if self.processor.video is None and "video" in kinds:
            raise PromptError(f"The model {self.model} takes no videos, and the prompt has {kinds.count('video')}.")
        budget = budget or RequestBudget(self.limits)
        budget.take_items(kinds)
        return budget

    def assemble(self, prompt: str, items: Sequence[MediaItem]) -> Request:
        """The request for a prompt whose media are loaded."""
        refuse_far_too_long(prompt, self.tokenizer, longest_prompt(self.max_model_len))
        token_ids, spans = expand(prompt, items, self.processor, self.spec.tokens, self.tokenizer)
        return self._complete(token_ids, items, spans)

    def _check_embeddings(self, items: Sequence[MediaItem]) -> None:
        """Embeddings that came in place of an image are as many and as wide as the model's own would be."""
        width = self.spec.vision.embedding_width
        for item in items:
            header = item.ref.header
            if isinstance(header, EmbeddingsHeader) and header.shape != (item.rows, width):
                raise PromptError(
                    f"Image embeddings have the shape {list(header.shape)}; an image of {header.width}x{header.height} pixels "
                    f"has {[item.rows, width]} in the model {self.model}."
                )

    def _check_grids(self, items: Sequence[MediaItem]) -> None:
        """On a GPU a position that a tower does not have would end the process."""
        vision = self.spec.vision
        if not isinstance(vision, PatchTowerSpec):
            return
        for item in items:
            side = max(max(rows, columns) for _, rows, columns in item.grids)
            if side > vision.max_grid_side:
                which, most = f"{item.ref.kind.capitalize()} {item.ref.source}", vision.max_grid_side
                raise PromptError(f"{which} has {side} patches along a side; the model {self.model} has positions for {most}.")

    @functools.cached_property
    def _placeholders(self) -> tuple[str, ...]:
        return tuple(map(self.tokenizer.token_of, self.spec.tokens.pads))

    def _complete(self, token_ids: NDArray[np.int32], items: Sequence[MediaItem], spans: tuple[MediaSpan, ...]) -> Request:
        limit, length = longest_prompt(self.max_model_len), len(token_ids)
        if length == 0:
            raise PromptError("The prompt is empty.")
        check_tokens(length, limit)
        self._check_embeddings(items)
        self._check_grids(items)
        positions, delta = prompt_positions(length, items, spans, self.processor)
        check_positions(length + delta, limit)
        return Request(
            token_ids=token_ids,
            positions=positions,
            position_delta=delta,
            items=tuple(items),
            spans=spans,
            adapter=self.processor.adapter(items),
        )
