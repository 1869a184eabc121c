"""OpenAI-style messages, checked and split: what a chat template reads, and the media in the order they stand.

```
in   {"role": "user", "content": [{"type": "image_url", "image_url": {"url": U}}, {"type": "text", "text": "What is it?"}]}
out  {"role": "user", "content": [{"type": "image"},                             {"type": "text", "text": "What is it?"}]}
     and MediaSource("image", U)
```
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from sightline.errors import PromptError
from sightline.prompt.media_options import NO_OPTIONS, SAMPLING, SIZES, MediaOptions, options_from
from sightline.types import Message

ROLES = ("system", "user", "assistant", "tool")
MediaKind = Literal["image", "video"]


class MediaSource(NamedTuple):
    """A medium that a message names: a path, URL, bytes, image object, or list of them, as `media.source` takes it."""

    kind: MediaKind
    source: Any
    options: MediaOptions = NO_OPTIONS  # its own, before what the request says of all


_OPTIONS: dict[MediaKind, tuple[str, ...]] = {"image": SIZES, "video": (*SIZES, *SAMPLING)}
_MEDIA_PARTS: dict[str, MediaKind] = {"image": "image", "image_url": "image", "video": "video", "video_url": "video"}
_AUDIO_PARTS = ("audio", "audio_url", "input_audio")


def normalise_messages(
    messages: Sequence[Message], placeholders: Collection[str] = ()
) -> tuple[list[dict[str, Any]], list[MediaSource]]:
    """Messages for a template and the media in order.

    `placeholders` are the tokens that stand for media in a rendered prompt. They may not occur in any text of a message: a
    tokenizer would take them for an image or video that is not there.
    """
    if isinstance(messages, (str, bytes, Mapping)) or not isinstance(messages, Sequence):
        raise PromptError(f"messages must be a list of messages, not {type(messages).__name__}.")
    if not messages:
        raise PromptError("messages is empty.")
    normalised: list[dict[str, Any]] = []
    media: list[MediaSource] = []
    for index, message in enumerate(messages):
        where = f"messages[{index}]"
        if not isinstance(message, Mapping):
            raise PromptError(f"{where} must be an object with a role and a content, not {type(message).__name__}.")
        role = message.get("role")
        if role not in ROLES:
            raise PromptError(f"{where} has role {role!r}; it must be one of {', '.join(ROLES)}.")
        # Other fields (tool_calls, name, reasoning_content, …) are the template's to read.
        others = {key: value for key, value in message.items() if key not in ("role", "content") and value is not None}
        refuse_placeholders(others, where, placeholders)
        content = _content(message, where, placeholders, media)
        normalised.append({"role": role, "content": content, **others})
    return normalised, media


def with_text_content(messages: list[dict[str, Any]], written: Callable[[MediaKind, int], str | None]) -> list[dict[str, Any]]:
    """Normalised messages for a template that takes the content of each as text: `written` says what stands for the n-th medium
    of a kind, from 1 through all messages. Where it says None, templates take parts, and nothing is changed."""
    counts: dict[MediaKind, int] = {"image": 0, "video": 0}

    def text_of(part: Mapping[str, Any]) -> str:
        if part["type"] == "text":
            return str(part["text"])
        counts[part["type"]] += 1
        return written(part["type"], counts[part["type"]]) or ""

    if written("image", 1) is None:
        return messages
    joined = ("".join(map(text_of, m["content"])) if isinstance(m["content"], list) else m["content"] for m in messages)
    return [{**message, "content": content} for message, content in zip(messages, joined, strict=True)]


def refuse_placeholders(value: Any, where: str, placeholders: Collection[str]) -> None:
    """Raises if any string inside `value` contains a placeholder token."""
    for text in _strings(value):
        for token in placeholders:
            if token in text:
                raise PromptError(
                    f"{where} contains {token!r}, which stands for an image or video and cannot be written as text."
                )


def _content(
    message: Message, where: str, placeholders: Collection[str], media: list[MediaSource]
) -> str | list[dict[str, Any]]:
    content = message.get("content")
    if content is None:
        if message["role"] == "assistant" and message.get("tool_calls"):
            return ""
        raise PromptError(f"{where} (role {message['role']!r}) has no content.")
    if isinstance(content, str):
        refuse_placeholders(content, f"{where}.content", placeholders)
        return content
    if isinstance(content, (bytes, Mapping)) or not isinstance(content, Sequence):
        raise PromptError(f"{where}.content must be text or a list of parts, not {type(content).__name__}.")
    return [_part(part, f"{where}.content[{position}]", placeholders, media) for position, part in enumerate(content)]


def _part(part: Any, where: str, placeholders: Collection[str], media: list[MediaSource]) -> dict[str, Any]:
    if not isinstance(part, Mapping):
        raise PromptError(f"{where} must be an object with a type, not {type(part).__name__}.")
    form = part.get("type")
    if form == "text":
        _refuse_unknown(part, ("type", "text"), where)
        text = part.get("text")
        if not isinstance(text, str):
            raise PromptError(f"{where} has type 'text' but no string in 'text'.")
        refuse_placeholders(text, f"{where}.text", placeholders)
        return {"type": "text", "text": text}
    if form in _AUDIO_PARTS:
        raise PromptError(f"{where} has type {form!r}, and audio is not supported.")
    if not isinstance(form, str) or form not in _MEDIA_PARTS:
        raise PromptError(f"{where} has type {form!r}; it must be one of text, file, {', '.join(_MEDIA_PARTS)}.")
    kind = _MEDIA_PARTS[form]
    names = _OPTIONS[kind]
    _refuse_unknown(part, ("type", form, *names), where)
    source = part.get(form)
    given = {name: part[name] for name in names if name in part}
    if form.endswith("_url"):
        if isinstance(source, Mapping):
            _refuse_unknown(source, ("url", "detail", *names), f"{where}.{form}")
            given |= {name: source[name] for name in names if name in source}
            source = source.get("url")
        listed = kind == "video" and isinstance(source, list) and all(isinstance(url, str) and url for url in source)
        if not source or not (listed or isinstance(source, str)):
            raise PromptError(f"{where} has type {form!r} but no URL in '{form}.url'.")
    elif source is None:
        raise PromptError(f"{where} has type {form!r} but no {form!r} field.")
    media.append(source if isinstance(source, MediaSource) else MediaSource(kind, source, options_from(given, names, where)))
    return {"type": kind}


def _refuse_unknown(fields: Mapping[str, Any], known: Collection[str], where: str) -> None:
    for name, value in fields.items():
        if name not in known and value is not None:
            raise PromptError(f"{where} has a field {name!r} that is not supported.")


def _strings(value: Any) -> Iterator[str]:
    """Every string inside nested lists and objects, names of fields included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _strings(key)
            yield from _strings(inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from _strings(inner)
