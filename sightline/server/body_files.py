"""A body to a request, its data URLs decoded straight from its bytes: the parser sees a short name in the place of each.

Eight pictures are 5 MB of JSON, of which a parser would make strings, only for these to be decoded. That took as long as their
digests.

Nothing else may change by it. So it is done for plain cases only, and whatever is not plain is left to the parser: a URL with
escapes in it, one that is not strict base64, a body that is no JSON or not what was expected, a URL that stands elsewhere than
in a part with media.
"""

import contextlib
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

import msgspec

from sightline.media.data_url import EmbeddedFile, embedded_file
from sightline.server.parse import Decoder, data_urls, decode, may_have_too_many_values, parse
from sightline.server.protocol import EmbeddingsPart, FilePart, ImagePart, Message, Part, TextPart, Url, VideoUrl

T = TypeVar("T")
Files = Mapping[str, EmbeddedFile]  # by the names that stand in a body instead of their URLs
_SHORTEST = 512  # characters of a URL that is worth it


def parse_with_files(
    body: bytes, decoder: Decoder[T], urls_of: Callable[[T], Iterator[str]]
) -> tuple[T, dict[str, EmbeddedFile]]:
    """What the body says, and the files whose names stand in it. `urls_of` finds the places where they may."""
    spans = data_urls(body, _SHORTEST)
    found = [(start, end, file) for start, end in spans if (file := embedded_file(body, start, end)) is not None]
    if found:
        secret = secrets.token_hex(16)  # nobody else can name a file
        files = {f"file-{number}-{secret}": file for number, (_, _, file) in enumerate(found)}
        short = _with_names(body, [(start, end) for start, end, _ in found], list(files))
        with contextlib.suppress(msgspec.DecodeError, RecursionError, UnicodeDecodeError):  # parse says what is wrong
            parsed = None if may_have_too_many_values(short) else decode(short, decoder)
            if parsed is not None and files.keys() <= set(urls_of(parsed)):
                return parsed, files
    return parse(body, decoder), {}


def _with_names(body: bytes, spans: Sequence[tuple[int, int]], names: Sequence[str]) -> bytes:
    pieces: list[bytes | memoryview] = []
    last = 0
    with memoryview(body) as view:
        for (start, end), name in zip(spans, names, strict=True):
            pieces += [view[last:start], name.encode()]
            last = end
        return b"".join([*pieces, view[last:]])


def media_urls(messages: Sequence[Message]) -> Iterator[str]:
    for message in messages:
        for part in message.content if isinstance(message.content, list) else ():
            url = url_of(part)
            if url is not None:
                yield from [url] if isinstance(url, str) else url


def url_of(part: Part) -> str | list[str] | None:
    """Where the medium of a part is; a list is one of frames."""
    if isinstance(part, TextPart | EmbeddingsPart):
        return None
    if isinstance(part, FilePart):
        return part.file.file_data or part.file.file_url
    given = part.image_url if isinstance(part, ImagePart) else part.video_url
    return given.url if isinstance(given, Url | VideoUrl) else given
