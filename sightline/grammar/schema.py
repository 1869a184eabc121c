"""A user's JSON schema as the grammar library gets it, so that answers end: objects closed, formats known, white space settled.

**Closing.** An object that names `properties` may have those and no others, unless it says otherwise by additionalProperties,
patternProperties or unevaluatedProperties. By the standard it would be open, and a model that was not taught otherwise goes on
inventing members until max_tokens.

Schemas for the same value (allOf, anyOf, a $ref with company) are closed together, around all the names that they give:

```
{"allOf": [{"$ref": "#/$defs/A"}, {"properties": {"b": …}}]}      A names a
{"allOf": [{A as it is, open}, {"properties": {"b": …}}], "properties": {"a": {}, "b": {}}, "additionalProperties": false}
```
"""

import urllib.parse
from collections.abc import Iterator
from typing import Any, Literal

from sightline.errors import PromptError

Style = Literal["compact", "spaced", "free"]

_STYLES: dict[Style, dict[str, Any]] = {
    "compact": {"whitespace_flexible": False},
    "spaced": {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "},  # as templates write calls
    # Nothing, a space, or a new line with its indentation. Bounded: a model that likes white space would write nothing else.
    "free": {"whitespace_pattern": r" |\r?\n[ \t]{0,32}"},
}
_MOST_SCHEMAS = 20_000  # that may come of one, where definitions are used in several places
_OPENERS = ("additionalProperties", "patternProperties", "unevaluatedProperties")
_MAPS = ("properties", "patternProperties", "$defs", "definitions")  # keywords that hold schemas by names
_INSIDE = ("items", "prefixItems", "contains", "additionalProperties", "unevaluatedProperties")  # a schema or a list of them
_SAME_VALUE = ("allOf", "anyOf", "oneOf")  # schemas of the value itself, not of something in it
_NOTES = {
    "title",
    "description",
    "default",
    "examples",
    "deprecated",
    "readOnly",
    "writeOnly",
    "$comment",
    "$defs",
    "definitions",
}
FORMATS = ("date", "date-time", "time", "duration", "email", "hostname", "ipv4", "ipv6", "uri", "uuid")
_ANY_TEXT = {"password", "binary", "path", "file-path", "directory-path", "json-string"}  # what a text is for, not what it is


def prepared(schema: dict[str, Any], style: Style) -> dict[str, Any]:
    """A schema to be compiled, with our settings in place of what a user may have put there."""
    try:
        return {**_Closing(schema).schema(schema), "x-guidance": _STYLES[style]}
    except RecursionError:
        raise PromptError("The JSON schema for the answer is nested too deeply.") from None


class _Closing:
    def __init__(self, root: dict[str, Any]) -> None:
        self._root = root
        self._left = _MOST_SCHEMAS
        self._open: list[str] = []  # references that are being written out

    def schema(self, value: Any, alone: bool = True) -> Any:
        """`alone`: no other schema is for the same value, so that all the names it may have are known here."""
        if not isinstance(value, dict):
            return value
        self._count()
        _check_format(value)
        refers = alone and "$ref" in value and not value.keys() - _NOTES - {"$ref"}  # what it leads to is closed there
        together = [] if refers else [part for part in self._parts(value, unions=False) if "properties" in part]
        found = {name: self._keyword(name, inner, alone and not together) for name, inner in value.items()}
        if found.get("format") in _ANY_TEXT:
            del found["format"]
        if together or not alone:
            self._write_out(found)
        if alone and together and not any(part.keys() & set(_OPENERS) for part in self._parts(value, unions=True)):
            names = dict.fromkeys(name for part in self._parts(value, unions=True) for name in _names(part))
            found["properties"] = {**{name: {} for name in names}, **found.get("properties", {})}
            found["additionalProperties"] = False
        return found

    def _keyword(self, name: str, value: Any, branches_alone: bool) -> Any:
        if name in _MAPS and isinstance(value, dict):
            return {key: self.schema(inner) for key, inner in value.items()}
        if name in _SAME_VALUE and isinstance(value, list):
            return [self.schema(inner, branches_alone and name != "allOf") for inner in value]
        if name in _INSIDE:
            return [self.schema(inner) for inner in value] if isinstance(value, list) else self.schema(value)
        return value

    def _write_out(self, found: dict[str, Any]) -> None:
        """Puts what a reference means in its place, open: what it stands for elsewhere is closed."""
        target = self._target(found)
        if target is None:
            return
        reference = found.pop("$ref")
        self._open.append(reference)
        found["allOf"] = [*found.get("allOf", ()), self.schema(target, alone=False)]
        self._open.pop()

    def _parts(self, value: dict[str, Any], unions: bool) -> Iterator[dict[str, Any]]:
        """The schema and others that are for the same value: those that all hold, and those of which one does."""
        self._count()
        yield value
        for name in _SAME_VALUE if unions else ("allOf",):
            members = value.get(name)
            for member in members if isinstance(members, list) else ():
                if isinstance(member, dict):
                    yield from self._parts(member, unions)
        target = self._target(value)
        if target is not None:
            self._open.append(value["$ref"])
            yield from self._parts(target, unions)
            self._open.pop()

    def _target(self, value: dict[str, Any]) -> dict[str, Any] | None:
        """What a reference inside the schema leads to, unless it leads back to where it stands."""
        reference = value.get("$ref")
        if not isinstance(reference, str) or not reference.startswith("#") or reference in self._open:
            return None
        found: Any = self._root
        for step in reference[1:].split("/")[1:]:
            name = urllib.parse.unquote(step).replace("~1", "/").replace("~0", "~")
            found = found.get(name) if isinstance(found, dict) else None
        return found if isinstance(found, dict) else None

    def _count(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise PromptError("The JSON schema for the answer cannot be used: it is too complex.")


def _names(schema: dict[str, Any]) -> list[str]:
    """Members that an object may or must have, as far as this schema says."""
    properties, required = schema.get("properties"), schema.get("required")
    must = [name for name in required if isinstance(name, str)] if isinstance(required, list) else []
    return [*(properties if isinstance(properties, dict) else ()), *must]


def _check_format(schema: dict[str, Any]) -> None:
    name, kind = schema.get("format"), schema.get("type", "string")
    is_text = kind == "string" or (isinstance(kind, list) and "string" in kind)
    if name is None or not is_text or not isinstance(name, str) or name in FORMATS or name in _ANY_TEXT:
        return
    raise PromptError(
        f"The JSON schema for the answer has the format {name[:40]!a}, which cannot be checked; "
        f"there are {', '.join(FORMATS)}. Leave it out or write a pattern."
    )
