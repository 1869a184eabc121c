"""Answers from a model in this process."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from sightline.config import Config
from sightline.errors import ConfigError
from sightline.evals.answerer import ModelAnswer
from sightline.evals.conversation import Conversation
from sightline.prompt.template import ChatTemplate, opens_reasoning
from sightline.stream.answer_parts import AnswerParser, ContentDelta
from sightline.types import Completion, SamplingParams

_FIELDS = frozenset(field.name for field in dataclasses.fields(SamplingParams))


class Library(Protocol):
    """What is needed of an LLM."""

    config: Config
    template: ChatTemplate
    device: Any
    dtype: Any

    def chat(self, messages: Sequence[Conversation], sampling: SamplingParams, **options: Any) -> list[Completion]: ...

    def close(self) -> None: ...


class InProcess:
    def __init__(self, llm: Library) -> None:
        self._llm = llm
        self._opens: dict[str, bool] = {}  # by the template's options

    @property
    def about(self) -> Mapping[str, Any]:
        config = self._llm.config
        return {
            "model": config.model.model or "the embedded one",
            "device": str(self._llm.device),
            "dtype": str(self._llm.dtype),
            "settings": _changed(config),
        }

    def ask(self, conversation: Conversation, sampling: Mapping[str, Any]) -> ModelAnswer:
        """`sampling` may have chat_template_kwargs, as a request to a server."""
        parameters = dict(sampling)
        kwargs = parameters.pop("chat_template_kwargs", {})
        if not isinstance(kwargs, Mapping):
            raise ConfigError(f"chat_template_kwargs is {kwargs!r}, but must be a JSON object.")
        for name in parameters:
            if name not in _FIELDS:
                raise ConfigError(f"There is no sampling parameter {name!r} for a model in this process.")
        (completion,) = self._llm.chat([conversation], SamplingParams(**parameters), chat_template_kwargs=kwargs)
        if completion.error is not None:
            raise completion.error
        return ModelAnswer(
            text=self._content(completion.text, kwargs),
            finish_reason=completion.finish_reason,
            prompt_tokens=completion.prompt_tokens,
            completion_tokens=len(completion.token_ids),
        )

    def close(self) -> None:
        self._llm.close()

    def _content(self, text: str, kwargs: Mapping[str, Any]) -> str:
        parser = AnswerParser(tools=False, reasoning=True, starts_in_reasoning=self._opens_reasoning(kwargs))
        deltas = [*parser.feed(text), *parser.finish()]
        return "".join(delta.text for delta in deltas if isinstance(delta, ContentDelta))

    def _opens_reasoning(self, kwargs: Mapping[str, Any]) -> bool:
        """Whether prompts end in thoughts that the answer goes on with."""
        key = json.dumps(kwargs, sort_keys=True)
        if key not in self._opens:
            self._opens[key] = opens_reasoning(self._llm.template.render([{"role": "user", "content": "?"}], **kwargs))
        return self._opens[key]


def _changed(config: Config) -> dict[str, Any]:
    """Settings that are not as they come, without those that `about` names anyway."""
    changed = {}
    for section in (config.model, config.media, config.engine):
        for field in dataclasses.fields(section):
            value = getattr(section, field.name)
            if value != field.default and field.name not in ("model", "device", "dtype"):
                changed[field.name] = list(value) if isinstance(value, tuple) else value
    return changed
