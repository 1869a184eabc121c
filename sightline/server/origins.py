"""Errors about a translated body, in the names of the body that the client sent."""

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from sightline.errors import UserError
from sightline.server.errors import ApiError, refused

_MESSAGE = re.compile(r"messages\[(\d+)\](\.content(?:\[(\d+)\](\.text|\.file)?)?)?")


@dataclass(frozen=True)
class Origin:
    """Where a message of the translated chat comes from."""

    message: str
    content: str
    parts: tuple[str, ...] = ()  # of its content, where that is a list; or the fields with their texts


@contextlib.contextmanager
def in_words_of(origins: Sequence[Origin], names: Mapping[str, str]) -> Iterator[None]:
    """`names` are those of fields that are called otherwise in a chat."""
    try:
        yield
    except UserError as error:
        raise _renamed(refused(error), origins, names) from None
    except ApiError as error:
        raise _renamed(error, origins, names) from None


def _renamed(error: ApiError, origins: Sequence[Origin], names: Mapping[str, str]) -> ApiError:
    def origin(found: re.Match[str]) -> str:
        number = int(found[1])
        if number >= len(origins):
            return found[0]
        own = origins[number]
        if found[3] is not None and int(found[3]) < len(own.parts):
            part, field = own.parts[int(found[3])], found[4] or ""
            return part + field if field == ".text" and part.endswith("]") else part
        return own.content if found[2] is not None else own.message

    message, param = _MESSAGE.sub(origin, error.message), error.param
    if param is not None:
        first = param.partition(".")[0]
        if first in names:
            message = re.sub(rf"\b{re.escape(first)}\b", names[first], message)
            param = names[first] + param.removeprefix(first)
        param = _MESSAGE.sub(origin, param)
    return ApiError(error.status, message, param=param, code=error.code, headers=error.headers)
