"""Who answers the questions."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from sightline.errors import UserError
from sightline.evals.conversation import Conversation


@dataclass(frozen=True)
class ModelAnswer:
    text: str  # without the reasoning before it
    finish_reason: str
    prompt_tokens: int
    completion_tokens: int


class Answerer(Protocol):
    """Gives deterministic answers, from several threads at once.

    `ask` raises AnswererGone if it makes no sense to go on, and another UserError if this one question cannot be answered.
    """

    @property
    def about(self) -> Mapping[str, Any]:
        """Who it is, with all that may change an answer; equal for two that answer alike."""
        ...

    def ask(self, conversation: Conversation, sampling: Mapping[str, Any]) -> ModelAnswer: ...

    def close(self) -> None: ...


class AnswererGone(UserError):
    """The one that answers cannot be reached, or refuses us altogether."""
