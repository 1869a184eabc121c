"""How JSON in answers may be written."""

from typing import Any

# Nothing, a space, or a new line with its indentation. Bounded: a model that likes white space would write nothing else.
_WHITE_SPACE = r" |\r?\n[ \t]{0,32}"


def with_style(schema: dict[str, Any]) -> dict[str, Any]:
    """A schema with the grammar library's settings in it, ours in place of what a user may have put there."""
    return {**schema, "x-guidance": {"whitespace_pattern": _WHITE_SPACE}}
