"""data: URLs, which carry a file as base64 in the text itself: data:image/jpeg;base64,/9j/4AAQ…

Taken as they are: the media type is not looked at (the bytes tell), white space inside the data is skipped (programs wrap
lines), padding at the end may be missing. Refused: the alphabet of URLs (- and _), percent-encoding, anything else.
"""

import re
from dataclasses import dataclass

import pybase64

from sightline.errors import MediaError
from sightline.media.limits import ByteAllowance

_LONGEST_START = 200  # characters before the comma; media types with parameters stay far below
_WHITE_SPACE = {ord(character): None for character in " \t\r\n\f\v"}
_WRAPPING = 78 / 76  # text wrapped as in e-mail has two characters more per 76
_PLAIN_START = re.compile(rb"data:[a-z0-9.+/;=-]{0,80};base64,")


@dataclass(frozen=True)
class EmbeddedFile:
    """A data URL that has been decoded."""

    start: str  # up to the comma, as it was written
    characters: int  # of all of it
    data: bytes


def embedded_file(text: bytes, start: int, end: int) -> EmbeddedFile | None:
    """The data URL that stands there in a text; None where it is not of the plainest form: decode_data_url reads more."""
    found = _PLAIN_START.match(text, start, end)
    if found is None:
        return None
    with memoryview(text) as view, view[found.end() : end] as payload:
        try:
            data = pybase64.b64decode(payload, validate=True)
        except ValueError:
            return None
    return EmbeddedFile(found[0].decode(), end - start, data)


def decode_data_url(text: str, allowance: ByteAllowance) -> bytes:
    """The bytes in a data URL. Its size is checked from the length of the text, before anything is copied or decoded."""
    comma = text.find(",", 0, _LONGEST_START)
    if comma < 0 or not text[:comma].lower().rstrip().endswith(";base64"):
        raise MediaError(f"{allowance.subject} cannot be read: a data URL must have the form data:<type>;base64,<data>.")
    _check_length(len(text) - comma - 1, allowance)
    payload = text[comma + 1 :]
    try:
        data = _decoded(payload)
    except ValueError:  # binascii.Error and UnicodeEncodeError are ValueErrors
        try:
            data = _decoded(payload.translate(_WHITE_SPACE) if payload.isascii() else payload)
        except ValueError as error:
            raise MediaError(f"{allowance.subject} cannot be read: its data is not base64.") from error
    allowance.check(len(data))
    allowance.take(len(data))
    return data


def data_of(file: EmbeddedFile, allowance: ByteAllowance) -> bytes:
    """As decode_data_url of the same URL."""
    _check_length(file.characters - len(file.start), allowance)
    allowance.check(len(file.data))
    allowance.take(len(file.data))
    return file.data


def _check_length(characters: int, allowance: ByteAllowance) -> None:
    decoded = characters * 3 // 4
    if decoded > allowance.left * _WRAPPING + 8:
        allowance.check(decoded)


def _decoded(payload: str) -> bytes:
    missing = -len(payload) % 4
    if missing in (1, 2) and not payload.endswith("="):
        payload += "=" * missing
    return pybase64.b64decode(payload, validate=True)
