"""Parts of messages that are files: each becomes the images of its pages before a template sees the messages.

```
in   {"type": "file", "file": {"file_data": "data:application/pdf;base64,…", "filename": "report.pdf"}}
out  {"type": "image", "image": page 1}, {"type": "image", "image": page 2}, …
```
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sightline.errors import PromptError
from sightline.prompt.media_options import SIZES, MediaOptions, options_from
from sightline.types import Message

_FIELDS = ("file_data", "file_url", "filename", *SIZES)


@dataclass(frozen=True)
class FileSource:
    """A file as a part names it."""

    source: Any  # as media/source.py takes it
    name: str  # what the user calls it; empty: as its source says
    options: MediaOptions


def with_pages(messages: Sequence[Message], pages: Callable[[Any, str], Sequence[Any]]) -> Sequence[Message]:
    """The messages with parts of images in place of files. `pages` gives what stands in them, of what a part has as its file
    and where that is. What is no message at all is left for others to refuse."""
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Sequence):
        return messages
    return [_with_pages(message, f"messages[{index}]", pages) for index, message in enumerate(messages)]


def _with_pages(message: Message, where: str, pages: Callable[[Any, str], Sequence[Any]]) -> Message:
    content = message.get("content") if isinstance(message, Mapping) else None
    if not isinstance(content, list | tuple) or not any(map(_is_file, content)):
        return message
    parts: list[Any] = []
    for position, part in enumerate(content):
        if _is_file(part):
            here = f"{where}.content[{position}]"
            unknown = next((name for name in part if name not in ("type", "file")), None)
            if unknown is not None:
                raise PromptError(f"{here} has a field {unknown!r} that is not supported.")
            parts += [{"type": "image", "image": page} for page in pages(part.get("file"), here)]
        else:
            parts.append(part)
    return {**message, "content": parts}


def _is_file(part: Any) -> bool:
    return isinstance(part, Mapping) and part.get("type") == "file"


def read_file_part(file: Any, where: str) -> FileSource:
    """Of OpenAI's form, or a path, URL or bytes in its place."""
    if not isinstance(file, Mapping):
        if not file:
            raise PromptError(f"{where} has type 'file' but nothing in 'file'.")
        return FileSource(file, "", MediaOptions())
    given = {name: value for name, value in file.items() if value is not None}
    if "file_id" in given:
        raise PromptError(f"{where}.file has 'file_id', but no files are kept here; send 'file_data' or 'file_url'.")
    unknown = next((name for name in given if name not in _FIELDS), None)
    if unknown is not None:
        raise PromptError(f"{where}.file has a field {unknown!r} that is not supported.")
    if ("file_data" in given) == ("file_url" in given):
        raise PromptError(f"{where}.file must have either 'file_data' or 'file_url'.")
    sizes = {name: given[name] for name in SIZES if name in given}
    name = given.get("filename", "")
    if not isinstance(name, str) or len(name) > 256 or not name.isprintable():
        raise PromptError(f"{where}.file.filename must be a printable text of at most 256 characters.")
    source = given["file_data"] if "file_data" in given else given["file_url"]
    if isinstance(source, str) and not source:
        raise PromptError(f"{where}.file has an empty text in 'file_data' or 'file_url'.")
    return FileSource(source, name, options_from(sizes, SIZES, f"{where}.file"))
