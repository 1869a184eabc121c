"""Files in the data URLs of a body, decoded as they come in, so that its parser need not make strings of them first.

A body with eight pictures is 5 MB of JSON. Made into strings, decoded and digested after its last byte, they take several
milliseconds; here each is decoded when its closing quote is there, and its digest is begun, while the others still come in. The
parser sees a short name in the place of each.

Nothing else may change by that. So it is done for plain cases only, and whatever is not plain is left to the parser: a URL with
escapes in it, one that is not strict base64, a body that is no JSON or not what was expected, a URL that stands elsewhere than
in a part with media.
"""

import contextlib
import secrets
from collections.abc import Iterator, Mapping
from typing import TypeVar

import msgspec

from sightline.media.data_url import EmbeddedFile, embedded_file
from sightline.media.digests import Digester
from sightline.server.parse import may_have_too_many_values, parse
from sightline.server.protocol import ChatRequest, ImagePart, Url, VideoPart

T = TypeVar("T")
Files = Mapping[str, EmbeddedFile]  # by the names that stand in a body instead of their URLs
_SHORTEST = 512  # characters of a URL that is worth it
_MOST_ON_LOOP = 1 << 22  # characters that the event loop decodes itself, which takes half a millisecond
_WORTH_A_THREAD = 1 << 16  # bytes whose digest takes longer than to hand them over
_MOST_QUOTES = 10_000  # looked at one by one
_START = b"data:"


class BodyFiles:
    """Those of one body. `look` is told what there is of it so far; `parse` of the whole."""

    def __init__(self, digester: Digester) -> None:
        self._digester = digester
        self._files: list[tuple[int, int, EmbeddedFile]] = []  # where the URL begins and ends
        self._large: list[tuple[int, int]] = []  # to be decoded later
        self._next = 0  # where to look for a quote
        self._open: int | None = None  # where a URL begins whose end has not come
        self._quotes = 0

    def look(self, body: bytes | bytearray) -> None:
        """On the event loop, while the body comes in."""
        for start, end in self._urls(body):
            if end - start > _MOST_ON_LOOP:
                self._large.append((start, end))
            elif (file := embedded_file(body, start, end)) is not None:
                if len(file.data) >= _WORTH_A_THREAD:
                    file.digest = self._digester.begin(file.data)
                self._files.append((start, end, file))

    def parse(self, body: bytes | bytearray, decoder: msgspec.json.Decoder[T]) -> tuple[T, Files]:
        """What the body says, and files by the names that stand in it in their place. Fit for any thread."""
        found, self._files = self._files, []  # they are not held longer than by who gets them
        for start, end in (*self._large, *self._urls(body)):
            if (file := embedded_file(body, start, end)) is not None:
                found.append((start, end, file))
        if not found:
            return parse(body, decoder), {}
        secret = secrets.token_hex(16)  # nobody else can name a file
        named = {f"file-{number}-{secret}": one for number, one in enumerate(sorted(found, key=lambda one: one[0]))}
        short = _shortened(body, named)
        with contextlib.suppress(msgspec.DecodeError, RecursionError, UnicodeDecodeError):  # parse says what is wrong
            parsed = None if may_have_too_many_values(short) else decoder.decode(short)
            if isinstance(parsed, ChatRequest) and named.keys() <= set(_media_urls(parsed)):
                return parsed, {name: file for name, (_, _, file) in named.items()}
        return parse(body, decoder), {}

    def _urls(self, body: bytes | bytearray) -> Iterator[tuple[int, int]]:
        """Where data URLs begin and end, as far as they are there. Some may be inside of other strings."""
        while self._quotes < _MOST_QUOTES:
            quote = body.find(b'"', self._next)
            if quote < 0:
                self._next = len(body)
                return
            if self._open is None and len(body) < quote + 1 + len(_START):
                self._next = quote  # what follows it has not come
                return
            self._quotes += 1
            self._next = quote + 1
            if self._open is None:
                self._open = quote + 1 if body.startswith(_START, quote + 1) else None
                continue
            start, self._open = self._open, None
            if quote - start >= _SHORTEST:
                yield start, quote


def _shortened(body: bytes | bytearray, named: dict[str, tuple[int, int, EmbeddedFile]]) -> bytes:
    pieces: list[bytes | memoryview] = []
    last = 0
    with memoryview(body) as view:
        for name, (start, end, _) in named.items():
            pieces += [view[last:start], name.encode()]
            last = end
        return b"".join([*pieces, view[last:]])


def _media_urls(request: ChatRequest) -> Iterator[str]:
    for message in request.messages:
        for part in message.content if isinstance(message.content, list) else ():
            given = part.image_url if isinstance(part, ImagePart) else part.video_url if isinstance(part, VideoPart) else None
            url = given.url if isinstance(given, Url) else given
            if url is not None:
                yield url
