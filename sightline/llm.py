"""The offline library: load a model, ask it about images and videos."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, overload

import torch

from sightline.config import Config, MediaConfig, ModelConfig
from sightline.errors import ConfigError, PromptError
from sightline.models.families import read_model_spec, read_processor_spec
from sightline.models.generation import read_generation_defaults
from sightline.models.load import dummy_model, load_model
from sightline.models.locate import locate_model
from sightline.prompt.request import build_request
from sightline.prompt.template import ChatTemplate
from sightline.prompt.tokenizer import Tokenizer
from sightline.run.generate import Stopwatch, generate
from sightline.run.sampler import resolve_sampling
from sightline.types import Completion, Message, SamplingParams

_MODEL_SETTINGS = {field.name for field in dataclasses.fields(ModelConfig)}
_MEDIA_SETTINGS = {field.name for field in dataclasses.fields(MediaConfig)}


class LLM:
    """A loaded model.

    >>> llm = LLM("path/to/checkpoint")
    >>> parts = [{"type": "image", "image": "cat.jpg"}, {"type": "text", "text": "What is it?"}]
    >>> llm.chat([{"role": "user", "content": parts}]).text
    """

    def __init__(self, model: str | Path, config: Config | None = None, **settings: Any) -> None:
        """`settings` are fields of ModelConfig and MediaConfig by name, e.g. dtype="float32", max_pixels=1_000_000."""
        self.config = _with_settings(config or Config(), {"model": str(model), **settings})
        chosen = self.config.model
        self.folder = locate_model(chosen.model, chosen.revision, weights=chosen.load_format == "safetensors")
        self.spec = read_model_spec(self.folder)
        self.processor = read_processor_spec(self.folder, self.spec, self.config.media)
        self.tokenizer = Tokenizer.from_folder(self.folder)
        self.template = ChatTemplate.from_folder(self.folder)
        self.defaults = read_generation_defaults(self.folder, self.spec)
        self.device = choose_device(chosen.device)
        self.dtype = _choose_dtype(chosen.dtype, self.spec.dtype, self.device)
        self.max_model_len = _choose_length(chosen.max_model_len, self.spec.text.max_position)
        if chosen.page_size < 1:
            raise ConfigError(f"page_size is {chosen.page_size}, but must be at least 1.")
        if chosen.load_format == "dummy":
            self.model = dummy_model(self.spec, self.device, self.dtype, self.max_model_len, chosen.seed)
        else:
            self.model = load_model(self.spec, self.folder, self.device, self.dtype, self.max_model_len)

    @overload
    def chat(
        self,
        messages: Sequence[Message],
        sampling: SamplingParams | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> Completion: ...

    @overload
    def chat(
        self,
        messages: Sequence[Sequence[Message]],
        sampling: SamplingParams | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[Completion]: ...

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling: SamplingParams | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> Completion | list[Completion]:
        """Answers one conversation, or each of a list of them."""
        if not messages:
            raise PromptError("There are no messages to answer.")
        conversations: Any = messages if isinstance(messages[0], list | tuple) else [messages]
        params = sampling or SamplingParams()
        answers = [self._answer(conversation, params, tools, template_kwargs) for conversation in conversations]
        return answers if conversations is messages else answers[0]

    def _answer(
        self,
        messages: Sequence[Message],
        params: SamplingParams,
        tools: Sequence[Mapping[str, Any]] | None,
        template_kwargs: Mapping[str, Any] | None,
    ) -> Completion:
        watch = Stopwatch(self.device)
        request = build_request(
            messages,
            template=self.template,
            tokenizer=self.tokenizer,
            spec=self.spec,
            processor=self.processor,
            limits=self.config.media,
            tools=tools,
            template_kwargs=template_kwargs,
            max_len=self.max_model_len - 1,  # room for one token of an answer
        )
        watch.lap("prompt")
        ends = frozenset(params.stop_token_ids) | (frozenset() if params.ignore_eos else frozenset(self.defaults.eos_token_ids))
        tokens, ended = generate(
            self.model,
            request,
            self.processor,
            resolve_sampling(params, self.defaults.sampling),
            ends,
            self.max_model_len,
            self.config.model.page_size,
            params.seed if params.seed is not None else self.config.model.seed,
            stopped=lambda so_far: any(stop in self.tokenizer.decode(so_far) for stop in params.stop),
            watch=watch,
        )
        text = self.tokenizer.decode(tokens)
        cut = min((at for stop in params.stop if (at := text.find(stop)) >= 0), default=None)
        return Completion(
            text=text if cut is None else text[:cut],
            token_ids=tuple(tokens),
            finish_reason="stop" if ended else "length",
            prompt_tokens=len(request),
            timings=watch.seconds,
        )


def choose_device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(f"device is {name!r}, but must be 'auto', 'cpu', 'cuda' or 'cuda:N'.") from None
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(f"device is {name!r}, but only 'cpu' and 'cuda' are supported.")
    if device.type == "cuda" and (not torch.cuda.is_available() or (device.index or 0) >= torch.cuda.device_count()):
        raise ConfigError(f"device is {name!r}, but torch sees {torch.cuda.device_count()} CUDA devices.")
    return device


def _choose_length(wanted: int | None, made_for: int) -> int:
    if wanted is None:
        return made_for
    if not 2 <= wanted <= made_for:
        raise ConfigError(f"max_model_len is {wanted}, but must be between 2 and the {made_for} the model was made for.")
    return wanted


def _choose_dtype(name: str, checkpoint: str, device: torch.device) -> torch.dtype:
    if name == "auto":
        name = checkpoint if device.type == "cuda" else "float32"
    dtype = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}.get(name)
    if dtype is None:
        raise ConfigError(f"dtype is {name!r}, but must be auto, bfloat16, float16 or float32.")
    return dtype


def _with_settings(config: Config, settings: Mapping[str, Any]) -> Config:
    for name in settings:
        if name not in _MODEL_SETTINGS | _MEDIA_SETTINGS:
            raise ConfigError(f"There is no setting {name!r}.")
    of_model = {name: value for name, value in settings.items() if name in _MODEL_SETTINGS}
    of_media = {name: value for name, value in settings.items() if name in _MEDIA_SETTINGS}
    return Config(dataclasses.replace(config.model, **of_model), dataclasses.replace(config.media, **of_media))
