"""The offline library: load a model, ask it about images and videos, one by one, in batches or as a stream."""

import asyncio
import dataclasses
import queue
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, overload

import torch

from sightline.config import Config, EngineConfig, MediaConfig, ModelConfig
from sightline.engine.engine import Update
from sightline.engine.load import load_engine
from sightline.engine.thread import EngineThread
from sightline.errors import ConfigError, PromptError
from sightline.grammar.compile import check as check_form
from sightline.models.files import read_model_files
from sightline.prompt.request import build_request, build_request_from_text, load_item
from sightline.run.sampling_params import resolve_sampling
from sightline.timing import StageClock
from sightline.types import Completion, Message, Request, SamplingParams

_SECTIONS: dict[str, Any] = {"model": ModelConfig, "media": MediaConfig, "engine": EngineConfig}


class LLM:
    """A loaded model with an engine in a thread of its own.

    >>> llm = LLM("path/to/checkpoint")
    >>> parts = [{"type": "image", "image": "cat.jpg"}, {"type": "text", "text": "What is it?"}]
    >>> llm.chat([{"role": "user", "content": parts}]).text
    """

    def __init__(self, model: str | Path = "", config: Config | None = None, **settings: Any) -> None:
        """`settings` are fields of the configuration by name, e.g. dtype="float32", max_pixels=1_000_000, max_num_seqs=8."""
        self.config = _with_settings(config or Config(), {"model": str(model), **settings})
        files = read_model_files(self.config.model, self.config.media)
        self.folder, self.spec, self.processor = files.folder, files.spec, files.processor
        self.tokenizer, self.template, self.defaults = files.tokenizer, files.template, files.defaults
        self.max_model_len = files.max_model_len
        self.engine = load_engine(self.config, files)
        self.model = self.engine.model
        weight = self.model.text.embed_tokens.weight
        self.device, self.dtype = weight.device, weight.dtype
        self._thread = EngineThread(self.engine)

    def close(self) -> None:
        """Ends the engine's thread. A closed LLM answers no more."""
        self._thread.close()

    def __enter__(self) -> "LLM":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    # ---- Asking

    @overload
    def chat(self, messages: Sequence[Message], sampling: SamplingParams | None = None, **options: Any) -> Completion: ...

    @overload
    def chat(
        self, messages: Sequence[Sequence[Message]], sampling: SamplingParams | None = None, **options: Any
    ) -> list[Completion]: ...

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling: SamplingParams | None = None,
        **options: Any,
    ) -> Completion | list[Completion]:
        """Answers one conversation, or each of a list of them at once (with sampling.n, n answers to each, one after another).

        Options: tools, template_kwargs, priority, cache_salt, progress (a bar while a batch runs).
        """
        if not messages:
            raise PromptError("There are no messages to answer.")
        several = isinstance(messages[0], list | tuple)
        conversations: Any = messages if several else [messages]
        tools, template_kwargs = options.pop("tools", None), options.pop("template_kwargs", None)
        builders = [self._chat_builder(conversation, tools, template_kwargs) for conversation in conversations]
        return self._answer(builders, sampling or SamplingParams(), several, **options)

    @overload
    def generate(
        self, prompts: str, sampling: SamplingParams | None = None, *, media: Sequence[Any] = (), **options: Any
    ) -> Completion: ...

    @overload
    def generate(
        self, prompts: Sequence[str], sampling: SamplingParams | None = None, *, media: Sequence[Any] = (), **options: Any
    ) -> list[Completion]: ...

    def generate(
        self,
        prompts: str | Sequence[str],
        sampling: SamplingParams | None = None,
        *,
        media: Sequence[Any] = (),
        **options: Any,
    ) -> Completion | list[Completion]:
        """Continues raw prompts, past the chat template. A prompt has one placeholder per medium, in order.

        `media` is a list of ("image" | "video", source) for one prompt, a list of such lists for several.
        """
        several = not isinstance(prompts, str)
        texts: Sequence[str] = prompts if several else [str(prompts)]
        of_each: Sequence[Any] = (media or [()] * len(texts)) if several else [media]
        if len(of_each) != len(texts):
            raise PromptError(f"There are {len(texts)} prompts and media for {len(of_each)}.")
        builders = [self._text_builder(text, parts) for text, parts in zip(texts, of_each, strict=True)]
        return self._answer(builders, sampling or SamplingParams(), several, **options)

    async def stream(
        self, messages: Sequence[Message], sampling: SamplingParams | None = None, **options: Any
    ) -> AsyncIterator[Update]:
        """Answers one conversation piece by piece. Leaving the loop early aborts the request. Options as for chat."""
        loop = asyncio.get_running_loop()
        news: asyncio.Queue[Update] = asyncio.Queue()
        params = sampling or SamplingParams()
        builder = self._chat_builder(messages, options.pop("tools", None), options.pop("template_kwargs", None))

        def tell(update: Update) -> None:
            loop.call_soon_threadsafe(news.put_nowait, update)

        request_id = await asyncio.to_thread(lambda: self._submit(builder, params, tell, **options))
        left = params.n
        try:
            while left:
                update = await news.get()
                if update.error is not None:
                    raise update.error
                left -= update.last
                yield update
        finally:
            if left:
                await asyncio.to_thread(self._thread.abort, request_id)

    def embed_images(self, images: Sequence[Any]) -> list[torch.Tensor]:
        """Embedding rows of each image, [rows, hidden]: what the language model sees in place of it."""
        items = [load_item("image", image, self.processor, self.config.media) for image in images]
        rows = self._thread.call(lambda: self.engine.embed(items))
        return [part[:, : self.spec.text.hidden_size] for part in rows]

    # ---- How

    def _chat_builder(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None,
        template_kwargs: Mapping[str, Any] | None,
    ) -> Callable[[StageClock], Request]:
        return lambda clock: build_request(
            messages,
            template=self.template,
            tools=tools,
            template_kwargs=template_kwargs,
            clock=clock,
            **self._prompt_arguments(),
        )

    def _text_builder(self, prompt: str, media: Sequence[tuple[str, Any]]) -> Callable[[StageClock], Request]:
        return lambda clock: build_request_from_text(prompt, media, clock=clock, **self._prompt_arguments())

    def _prompt_arguments(self) -> dict[str, Any]:
        return {
            "tokenizer": self.tokenizer,
            "spec": self.spec,
            "processor": self.processor,
            "limits": self.config.media,
            "max_len": self.max_model_len - 1,  # room for one token of an answer
        }

    def _submit(
        self,
        builder: Callable[[StageClock], Request],
        params: SamplingParams,
        listener: Callable[[Update], None],
        priority: int = 0,
        cache_salt: str = "",
    ) -> int:
        clock = StageClock()
        sampling = resolve_sampling(params, self.defaults.sampling, self.spec.text.vocab_size)
        if params.structured is not None:
            check_form(params.structured, self.tokenizer)
        ends = frozenset(params.stop_token_ids)
        return self._thread.submit(
            listener,
            request=builder(clock),
            sampling=sampling,
            end_tokens=ends if params.ignore_eos else ends | frozenset(self.defaults.eos_token_ids),
            stop=params.stop,
            priority=priority,
            cache_salt=cache_salt,
            clock=clock,
        )

    def _answer(
        self,
        builders: Sequence[Callable[[StageClock], Request]],
        params: SamplingParams,
        several: bool,
        progress: bool = False,
        **options: Any,
    ) -> Completion | list[Completion]:
        """Submits all, waits for all. If one fails, the others are aborted and its error is raised."""
        news: queue.SimpleQueue[Update] = queue.SimpleQueue()
        numbers: list[int] = []
        answers: dict[tuple[int, int], Completion] = {}
        try:
            for builder in builders:
                numbers.append(self._submit(builder, params, news.put, **options))
            with _ProgressBar(len(builders) * params.n, progress) as advance:
                while len(answers) < len(builders) * params.n:
                    update = news.get()
                    if update.error is not None:
                        raise update.error
                    if update.completion is not None:
                        answers[update.request_id, update.index] = update.completion
                        advance()
        except BaseException:
            for number in numbers:
                self._thread.abort(number)
            raise
        found = [answers[number, index] for number in numbers for index in range(params.n)]
        return found if several or params.n > 1 else found[0]


class _ProgressBar:
    """A progress bar over answers, or nothing."""

    def __init__(self, total: int, shown: bool) -> None:
        self._bar: Any = None
        if shown:
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn, TimeRemainingColumn

            self._bar = Progress("answers", BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
            self._task = self._bar.add_task("answers", total=total)

    def __enter__(self) -> Callable[[], None]:
        if self._bar is None:
            return lambda: None
        self._bar.start()
        return lambda: self._bar.advance(self._task)

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()


def _with_settings(config: Config, settings: Mapping[str, Any]) -> Config:
    left = dict(settings)
    sections: dict[str, Any] = {}
    for section, kind in _SECTIONS.items():
        names = {field.name for field in dataclasses.fields(kind)}
        given = {name: left.pop(name) for name in list(left) if name in names}
        sections[section] = dataclasses.replace(getattr(config, section), **given)
    if left:
        raise ConfigError(f"There is no setting {next(iter(left))!r}.")
    return dataclasses.replace(config, **sections)
