"""What the text of a source says: its scheme, and how to call it in messages and logs."""

import re
from pathlib import Path
from typing import Any

from sightline.media.data_url import EmbeddedFile

_SCHEME = re.compile(r"[a-z][a-z0-9+.-]{0,30}(?=://)|data(?=:)", re.IGNORECASE)
_PASSWORD = re.compile(r"(?<=:)//[^/?#]*@")


def is_data_url(source: Any) -> bool:
    """Whether it carries its data itself, so that nothing has to be waited for."""
    return isinstance(source, EmbeddedFile) or (isinstance(source, str) and scheme_of(source) == "data")


def scheme_of(text: str) -> str:
    found = _SCHEME.match(text)
    return found[0].lower() if found else ""


def display_name(source: str | Path | EmbeddedFile) -> str:
    """A source fit for messages and logs: one short line of printable text, and nothing of what it carries.

    Of a data URL the type is kept; of other URLs neither passwords nor the query, where signatures stand.
    """
    if isinstance(source, EmbeddedFile):
        return f"{source.start}… ({source.characters:,} characters)"
    text = str(source)
    scheme, most = scheme_of(text), 100
    if scheme == "data":
        shown = text[: text.find(",", 0, most) + 1] or text[:most]
    elif scheme in ("http", "https"):
        shown = _PASSWORD.sub("//…@", text[:2000])
        shown = (shown.partition("?")[0] + ("?…" if "?" in shown else ""))[:most]
    else:
        shown = text[:most]
    line = "".join(character if character.isprintable() else "\ufffd" for character in shown)
    return line if len(text) <= most and scheme != "data" else f"{line}… ({len(text):,} characters)"
