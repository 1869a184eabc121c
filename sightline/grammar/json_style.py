"""How JSON in answers may be written."""

from typing import Any

# Bounded, because a model that likes white space would write nothing else; enough to indent.
_WHITE_SPACE = r"[ \n\r\t]{1,40}"


def with_style(schema: dict[str, Any]) -> dict[str, Any]:
    """A schema with the grammar library's settings in it, ours in place of what a user may have put there."""
    return {**schema, "x-guidance": {"whitespace_pattern": _WHITE_SPACE}}
