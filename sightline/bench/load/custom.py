"""A dataset of one's own: a file with one JSON object per line.

    {"messages": [...], "output_tokens": 64}                        chat messages as the server takes them
    {"prompt": "...", "image_files": ["a.jpg"], "video_files": []}  a question with media; the names are relative to the file

Both may have "output_tokens" (most tokens of the answer) and "extra_body" (fields of this request alone).
"""

from pathlib import Path
from typing import Any

import msgspec

from sightline.bench.load.body import Medium, RequestSample, image_part, text_part, video_part
from sightline.errors import ConfigError

_KINDS = {
    ".jpg": "image/jpeg",
    ".jpeg": "image/jpeg",
    ".png": "image/png",
    ".webp": "image/webp",
    ".gif": "image/gif",
    ".bmp": "image/bmp",
    ".avif": "image/avif",
    ".tif": "image/tiff",
    ".tiff": "image/tiff",
    ".mp4": "video/mp4",
    ".mkv": "video/x-matroska",
    ".webm": "video/webm",
    ".avi": "video/x-msvideo",
    ".mov": "video/quicktime",
}
_REMOTE = ("http://", "https://", "data:")


class _Line(msgspec.Struct, forbid_unknown_fields=True):
    messages: list[dict[str, Any]] | None = None
    prompt: str | None = None
    image_files: list[str] = msgspec.field(default_factory=list)
    video_files: list[str] = msgspec.field(default_factory=list)
    output_tokens: int | None = None
    extra_body: dict[str, Any] = msgspec.field(default_factory=dict)


def read_custom(path: Path, output_len: int) -> list[RequestSample]:
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise ConfigError(f"The dataset {path} cannot be read: {error.strerror}.") from None
    known: dict[str, Medium | str] = {}
    samples = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            samples.append(_sample(msgspec.json.decode(line, type=_Line), path.parent, output_len, known))
        except msgspec.MsgspecError as error:
            raise ConfigError(f"Line {number} of {path} cannot be used: {error}.") from None
        except (ValueError, OSError) as error:
            raise ConfigError(f"Line {number} of {path} cannot be used: {error}") from None
    if not samples:
        raise ConfigError(f"The dataset {path} has no lines.")
    return samples


def _sample(line: _Line, folder: Path, output_len: int, known: dict[str, Medium | str]) -> RequestSample:
    if (line.messages is None) == (line.prompt is None):
        raise ValueError("it must have either 'messages' or 'prompt'.")
    tokens = output_len if line.output_tokens is None else line.output_tokens
    if tokens < 1:
        raise ValueError(f"'output_tokens' is {tokens}, but must be at least 1.")
    if line.messages is not None:
        if line.image_files or line.video_files:
            raise ValueError("'image_files' and 'video_files' belong to 'prompt'; messages hold their own media.")
        return RequestSample(line.messages, tokens, line.extra_body)
    assert line.prompt is not None
    parts = [image_part(_medium(name, folder, known)) for name in line.image_files]
    parts += [video_part(_medium(name, folder, known)) for name in line.video_files]
    return RequestSample([{"role": "user", "content": [*parts, text_part(line.prompt)]}], tokens, line.extra_body)


def _medium(name: str, folder: Path, known: dict[str, Medium | str]) -> Medium | str:
    """Files become data URLs; what is a URL stays one, for the server to fetch."""
    if name.startswith(_REMOTE):
        return name
    if name not in known:
        kind = _KINDS.get(Path(name).suffix.lower())
        if kind is None:
            raise ValueError(f"the kind of the file {name!r} is not known from its name.")
        known[name] = Medium.of((folder / name).read_bytes(), kind)
    return known[name]
