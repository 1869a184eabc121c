"""Prompts that end inside of the last message, so that an answer goes on with it."""

from collections.abc import Mapping, Sequence
from typing import Any

from sightline.errors import PromptError

_MARK = "\ue000the answer goes on here\ue001"  # private characters: no text has them by chance


def marked(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The messages with a mark at the end of the last one's text: templates may trim it, and write more behind it."""
    *others, last = messages
    content = last["content"]
    if isinstance(content, str):
        content = content + _MARK
    elif content and content[-1].get("type") == "text":
        content = [*content[:-1], {**content[-1], "text": content[-1]["text"] + _MARK}]
    else:
        content = [*content, {"type": "text", "text": _MARK}]
    return [*others, {**last, "content": content}]


def cut(prompt: str) -> str:
    """The prompt that a template made of marked messages, up to the mark."""
    index = prompt.rfind(_MARK)
    if index < 0:
        raise PromptError("The last message cannot be continued: the chat template does not write its text.")
    return prompt[:index]
