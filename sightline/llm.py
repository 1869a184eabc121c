"""The offline library: load a model, ask it about images and videos, one by one, in batches or as a stream."""

import asyncio
import dataclasses
import functools
import queue
import weakref
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, overload

import torch

from sightline.config import Config, EncoderConfig, EngineConfig, MediaConfig, ModelConfig
from sightline.engine.batch import Batch
from sightline.engine.engine import Update
from sightline.engine.executor import local_worker
from sightline.engine.load import load_engine
from sightline.engine.thread import EngineThread
from sightline.errors import ConfigError, PromptError
from sightline.grammar.compile import check as check_form
from sightline.media.decode import decode_image
from sightline.models.device import use_device
from sightline.models.files import read_model_files
from sightline.models.model import VisionLanguageModel
from sightline.prompt.items import load_item
from sightline.prompt.media_options import RequestOptions, request_options
from sightline.prompt.raw_prompts import Prompt, build_raw
from sightline.prompt.template import opens_reasoning
from sightline.sampling_params import ResolvedSampling, resolve_sampling
from sightline.stream.answer_parts import Calls
from sightline.stream.call_forms import call_reader
from sightline.submission import Submission, answer_returns, end_tokens_of, of_tenant, tenant_of
from sightline.timing import StageClock
from sightline.types import Completion, MediaItem, Message, Request, SamplingParams

Builder = Callable[[StageClock], Request]
_TAIL = 16  # tokens at the end of a prompt, among which a template may open a block of reasoning
_SECTIONS: dict[str, Any] = {"model": ModelConfig, "media": MediaConfig, "engine": EngineConfig, "encoder": EncoderConfig}


class LLM:
    """A loaded model with an engine in a thread of its own.

    ```python
    llm = LLM("path/to/checkpoint")
    parts = [{"type": "image", "image": "cat.jpg"}, {"type": "text", "text": "What is it?"}]
    print(llm.chat([{"role": "user", "content": parts}]).text)
    ```
    """

    def __init__(self, model: str | Path = "", config: Config | None = None, **settings: Any) -> None:
        """`settings` are fields of the configuration by name, e.g. dtype="float32", max_pixels=1_000_000, max_num_seqs=8."""
        self.config = _with_settings(config or Config(), {"model": str(model), **settings})
        files = read_model_files(self.config.model, self.config.media)
        self.folder, self.spec, self.processor = files.folder, files.spec, files.processor
        self.tokenizer, self.template, self.defaults = files.tokenizer, files.template, files.defaults
        self.max_model_len = files.max_model_len
        self.prompts = files.prompt_builder(self.config.media)
        self.engine = load_engine(self.config, files)
        facts = self.engine.executor.facts
        self.device, self.dtype = torch.device(facts.device), getattr(torch, facts.dtype)
        self._thread = EngineThread(self.engine)
        self._thread.call(functools.partial(use_device, self.device))
        # The thread knows the engine and not this object: with the last reference to it, the thread and the model's memory go.
        weakref.finalize(self, self._thread.end).atexit = False

    def close(self) -> None:
        """Ends the engine's thread. A closed LLM answers no more."""
        self._thread.close()

    def __enter__(self) -> "LLM":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    @property
    def model(self) -> VisionLanguageModel:
        """The loaded model, if it is in this process."""
        return local_worker(self.engine.executor).model

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

        Options: tools, chat_template_kwargs, mm_processor_kwargs, media_io_kwargs, priority, cache_salt, progress (a bar while
        a list is answered). A conversation of a list that cannot be answered does not stop the others: its completion has the
        `error`, no text, and finish_reason "error". The error of a single conversation is raised.
        """
        return self._answer(*self._chat_prompts(messages, options), sampling or SamplingParams(), **options)

    async def achat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling: SamplingParams | None = None,
        **options: Any,
    ) -> Any:
        """As chat, for an event loop. Cancelling it ends its requests."""
        return await self._answer_async(*self._chat_prompts(messages, options), sampling or SamplingParams(), **options)

    @overload
    def generate(
        self, prompts: Prompt, sampling: SamplingParams | None = None, *, media: Sequence[Any] = (), **options: Any
    ) -> Completion: ...

    @overload
    def generate(
        self, prompts: Sequence[Prompt], sampling: SamplingParams | None = None, *, media: Sequence[Any] = (), **options: Any
    ) -> list[Completion]: ...

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling: SamplingParams | None = None,
        *,
        media: Sequence[Any] = (),
        **options: Any,
    ) -> Completion | list[Completion]:
        """Continues raw prompts, past the chat template. A prompt has one placeholder per medium, in order.

        A prompt is a text or, as in vLLM, {"prompt": text, "multi_modal_data": {"image": …, "video": …}}, see
        prompt/raw_prompts.py. `media` is a list of ("image" | "video", source) for one prompt that is a text, a list of such
        lists for several. Options and errors as for chat, but for tools and chat_template_kwargs.
        """
        several = not isinstance(prompts, str | Mapping)
        given: Sequence[Any] = list(prompts) if several else [prompts]
        of_each: Sequence[Any] = (media or [()] * len(given)) if several else [media]
        if len(of_each) != len(given):
            raise PromptError(f"There are {len(given)} prompts and media for {len(of_each)}.")
        media_options = _media_options(options)

        def builder(prompt: Any, parts: Sequence[Any]) -> Builder:
            return lambda clock: build_raw(self.prompts, prompt, parts, media_options, clock)

        builders = [builder(prompt, parts) for prompt, parts in zip(given, of_each, strict=True)]
        return self._answer(builders, several, None, sampling or SamplingParams(), **options)

    async def stream(
        self, messages: Sequence[Message], sampling: SamplingParams | None = None, **options: Any
    ) -> AsyncIterator[Update]:
        """Answers one conversation piece by piece. Leaving the loop early aborts the request. Options as for chat."""
        loop = asyncio.get_running_loop()
        news: asyncio.Queue[Update] = asyncio.Queue()
        params = sampling or SamplingParams()
        (builder,), _, _ = self._chat_prompts([messages], options)
        sampled = self._resolved(params)

        def tell(update: Update) -> None:
            loop.call_soon_threadsafe(news.put_nowait, update)

        request_id, _ = await asyncio.to_thread(lambda: self._submit(builder, params, sampled, tell, **options))
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

    def embed_images(self, images: Sequence[Any], deepstack: bool = False) -> list[torch.Tensor]:
        """Embedding rows of each image, [rows, hidden]: what the language model sees in place of it. With `deepstack` in full
        width, with the features for further layers behind them, as ImageEmbeddings takes them."""
        items = [load_item("image", image, self.processor, self.config.media) for image in images]
        width = self.spec.vision.embedding_width if deepstack else self.spec.text.hidden_size
        return [self._embedded(item)[:, :width] for item in items]

    def _embedded(self, item: MediaItem) -> torch.Tensor:
        """Decoded here, in the caller's thread, unless the GPU does it."""
        rows = None
        if self._thread.call(lambda: self.engine.encoder.is_for_gpu(item)):
            rows = self._thread.call(lambda: self.engine.embed(item, None))
        if rows is None:
            pixels = decode_image(item.ref)[None]
            rows = self._thread.call(lambda: self.engine.embed(item, pixels))
        assert rows is not None
        return rows

    # ---- How

    def _chat_prompts(self, messages: Any, options: dict[str, Any]) -> tuple[list[Builder], bool, Calls]:
        """(how to build each prompt, whether there are several, which calls answers may have); takes its part of `options`."""
        if not messages:
            raise PromptError("There are no messages to answer.")
        several = isinstance(messages[0], list | tuple)
        tools, chat_template_kwargs = options.pop("tools", None), options.pop("chat_template_kwargs", None)
        fields = {"tools": tools, "chat_template_kwargs": chat_template_kwargs, "options": _media_options(options)}
        options["returns"] = answer_returns(bool(tools), chat_template_kwargs)

        def builder(conversation: Sequence[Message]) -> Builder:
            return lambda clock: self.prompts.chat(conversation, clock=clock, **fields)

        builders = [builder(conversation) for conversation in (messages if several else [messages])]
        return builders, several, Calls(bool(tools), call_reader(self.prompts.template.call_form, tools or ()))

    def _resolved(self, params: SamplingParams) -> ResolvedSampling:
        if params.structured is not None:
            check_form(params.structured, self.tokenizer)
        return resolve_sampling(params, self.defaults.sampling, self.spec.text.vocab_size)

    def _submit(
        self,
        builder: Builder,
        params: SamplingParams,
        sampling: ResolvedSampling,
        listener: Callable[[Update], None],
        priority: int = 0,
        cache_salt: str = "",
        returns: bool = False,
    ) -> tuple[int, bool]:
        """(the request's number, whether its answer begins with reasoning)."""
        clock = StageClock()
        tenant = tenant_of("", cache_salt)
        request = of_tenant(builder(clock), tenant)
        submission = Submission(
            request=request,
            sampling=sampling,
            end_tokens=end_tokens_of(params, self.defaults.eos_token_ids),
            stop=params.stop,
            priority=priority,
            answer_returns=returns,
            cache_salt=tenant,
            seconds=clock.seconds,
        )
        tail = self.tokenizer.decode(request.token_ids[-_TAIL:].tolist(), skip_special_tokens=False)
        return self._thread.submit(listener, submission), opens_reasoning(tail)

    def _answer(
        self,
        builders: Sequence[Builder],
        several: bool,
        calls: Calls | None,
        params: SamplingParams,
        progress: bool = False,
        **options: Any,
    ) -> Completion | list[Completion]:
        """Submits all, waits for all. `calls`: which ones answers may have; None: they are not taken apart at all."""
        news: queue.SimpleQueue[Update] = queue.SimpleQueue()
        batch = Batch(len(builders), params.n, calls, several)
        sampling = self._resolved(params)
        try:
            for number, builder in enumerate(builders):
                with batch.submitting(number):
                    batch.started(number, *self._submit(builder, params, sampling, news.put, **options))
            with _ProgressBar(len(builders) * params.n, progress) as advance:
                while not batch.complete:
                    advance(batch.take(news.get()))
        except BaseException:
            self._abort(batch)
            raise
        found = batch.completions()
        return found if several or params.n > 1 else found[0]

    async def _answer_async(
        self, builders: Sequence[Builder], several: bool, calls: Calls | None, params: SamplingParams, **options: Any
    ) -> Completion | list[Completion]:
        loop = asyncio.get_running_loop()
        news: asyncio.Queue[Update] = asyncio.Queue()
        batch = Batch(len(builders), params.n, calls, several)
        sampling = await asyncio.to_thread(self._resolved, params)

        def tell(update: Update) -> None:
            loop.call_soon_threadsafe(news.put_nowait, update)

        def submit(number: int, builder: Builder) -> None:
            with batch.submitting(number):
                batch.started(number, *self._submit(builder, params, sampling, tell, **options))

        try:
            for number, builder in enumerate(builders):
                submitting = asyncio.ensure_future(asyncio.to_thread(submit, number, builder))
                try:
                    await asyncio.shield(submitting)
                except asyncio.CancelledError:
                    await submitting  # so that what it adds is aborted, too
                    raise
            while not batch.complete:
                batch.take(await news.get())
        except BaseException:
            await asyncio.to_thread(self._abort, batch)
            raise
        found = batch.completions()
        return found if several or params.n > 1 else found[0]

    def _abort(self, batch: Batch) -> None:
        for number in batch.numbers():
            self._thread.abort(number)


def _media_options(options: dict[str, Any]) -> RequestOptions:
    """Takes them out of the options of a call."""
    return request_options(options.pop("mm_processor_kwargs", None), options.pop("media_io_kwargs", None))


class _ProgressBar:
    """A progress bar over answers, or nothing."""

    def __init__(self, total: int, shown: bool) -> None:
        self._bar: Any = None
        if shown:
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn, TimeRemainingColumn

            self._bar = Progress("answers", BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
            self._task = self._bar.add_task("answers", total=total)

    def __enter__(self) -> Callable[[int], None]:
        if self._bar is None:
            return lambda _: None
        self._bar.start()
        return lambda count: self._bar.advance(self._task, count)

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
