"""Bytes to the types of protocol.py; what is wrong with them becomes one sentence that names the field."""

import re
from collections.abc import Iterable, Iterator
from typing import Any, Protocol, TypeVar

import msgspec
import numpy as np

from sightline.server.errors import ApiError, shortened
from sightline.server.instead import unsupported, unsupported_value
from sightline.server.lenient import LenientDecoder

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
MAX_VALUES = 1_000_000  # in one body: each takes fifty bytes or more in memory, however short it is written
MAX_LEVELS = 200  # of lists and objects in each other: templates and encoders recurse, and Python stops at 1,000 calls
_SEPARATORS = b",[{"  # one of them stands before each value but the first
_PIECE = 1 << 18
_LONG = 1 << 16  # bytes of a string that is worth skipping
_MOST_QUOTES = 10_000  # looked at one by one
_AT = re.compile(r"^(?P<what>.*?)(?: - at `\$\.?(?P<path>.*)`)?$", re.DOTALL)


class Decoder(Protocol[T_co]):
    def decode(self, body: bytes, /) -> T_co: ...


def decoder_of(kind: type[T], lenient: bool) -> Decoder[T]:
    """Of bodies of this kind. A lenient one leaves unknown fields out."""
    return LenientDecoder(kind) if lenient else msgspec.json.Decoder(kind)


def parse(body: bytes, decoder: Decoder[T]) -> T:
    if may_have_too_many_values(body):
        raise too_many_values("The body has")
    try:
        return decode(body, decoder)
    except msgspec.ValidationError as error:
        raise _sentence(str(error)) from None
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise ApiError(400, f"The body is not valid JSON: {error}.", code="invalid_json") from None


def decode(body: bytes, decoder: Decoder[T]) -> T:
    """With the errors of the library, but for one."""
    found = decoder.decode(body)
    if body.count(b"[") + body.count(b"{") > MAX_LEVELS and is_too_deep(found):
        raise ApiError(
            400, f"The body has more than the {MAX_LEVELS} levels allowed of lists and objects.", code="too_many_levels"
        )
    return found


def is_too_deep(value: Any) -> bool:
    """Whether lists and objects are in more than MAX_LEVELS others."""
    level = [value]
    for _ in range(MAX_LEVELS):
        level = [inner for outer in level for inner in _inside(outer) if isinstance(inner, (list, dict, msgspec.Struct))]
        if not level:
            return False
    return True


def _inside(value: Any) -> Iterable[Any]:
    if isinstance(value, msgspec.Struct):
        return [getattr(value, name) for name in value.__struct_fields__]
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


def too_many_values(who_has: str) -> ApiError:
    return ApiError(400, f"{who_has} more than the {MAX_VALUES:,} values allowed.", code="too_many_values")


def may_have_too_many_values(body: bytes) -> bool:
    return len(body) > MAX_VALUES and most_values(body) > MAX_VALUES


def most_values(body: bytes) -> int:
    """No fewer than a parser would make of the body.

    Long data URLs are skipped, and are most of a body with images. What lies between a quote that "data:" follows and the next
    quote is inside a string: if that quote ended one, no parser would go past it.
    """
    count = last = 0
    for start, end in data_urls(body, _LONG):
        count += _count_separators(body, last, start)
        last = end
    return count + _count_separators(body, last, len(body))


def data_urls(body: bytes, shortest: int) -> Iterator[tuple[int, int]]:
    """Where data URLs of so many characters begin and end. Some may be inside of other strings."""
    quote = body.find(b'"')
    for _ in range(_MOST_QUOTES):
        if quote < 0:
            return
        following = body.find(b'"', quote + 1)
        if following - quote > shortest and body.startswith(b"data:", quote + 1):
            yield quote + 1, following
        quote = following


def _count_separators(body: bytes, start: int, end: int) -> int:
    """Five times as fast as bytes.count, and threads run meanwhile."""
    values, count = np.frombuffer(body, np.uint8)[start:end], 0
    for start in range(0, len(values), _PIECE):
        piece = values[start : start + _PIECE]
        count += sum(int(np.count_nonzero(piece == separator)) for separator in _SEPARATORS)
    return count


def _sentence(text: str) -> ApiError:
    found = _AT.match(shortened(text))
    assert found is not None
    what, path = found["what"], found["path"] or ""
    if field := re.fullmatch(r"Object contains unknown field `(.*)`", what, re.DOTALL):
        name = f"{path}.{field[1]}" if path else field[1]
        return ApiError(400, unsupported(name), param=name, code="unsupported_field")
    if field := re.fullmatch(r"Object missing required field `(.*)`", what):
        name = f"{path}.{field[1]}" if path else field[1]
        return ApiError(400, f"Field '{name}' is missing.", param=name, code="missing_field")
    if what.startswith("Expected `null`"):  # fields of other APIs that are not offered
        return ApiError(400, unsupported(path), param=path, code="unsupported_field")
    if value := re.fullmatch(r"Invalid (?:enum )?value (.*)", what, re.DOTALL):
        return ApiError(400, unsupported_value(path, value[1]), param=path, code="unsupported_value")
    subject = f"Field '{path}'" if path else "The body"
    reason = what[0].lower() + what[1:].replace("`", "'")
    return ApiError(400, f"{subject} is wrong: {reason}.", param=path or None, code="invalid_value")
