"""Bodies from a JSON schema: for each field at any depth, a body that is good but for what stands there."""

from collections.abc import Iterator, Mapping
from typing import Any

from hypothesis import strategies as st

Schema = Mapping[str, Any]
Path = tuple[str, ...]  # names of fields; "[]" is an entry of a list, "{}" a value of an object with any names
MOST_LEVELS = 8

_NAMES = ("self", "cls", "", "__class__", "messages", "type", "\ud800", "a" * 300, "0", "$ref", "data:")
_ODD: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2, 2**31 - 1, 2**31, 2**53, 2**63, 2**64, -(2**63) - 1, 10**40, 10**400),
    *(0.0, -0.0, 0.5, 1e-320, 1e308, -1e308, float("nan"), float("inf"), float("-inf")),
    *("", " ", "x", "\x00", "\ud800", "\udfff\ud800", "\u202e", "💥" * 40, "x" * 5000, "1" * 5000, "NaN", "null", "\n"),
    *(
        "data:",
        "data:,",
        "data:image/png;base64,",
        "data:image/png;base64,AAAA",
        "data:;base64,iVBORw0KGgo=",
        "file:///etc/passwd",
    ),
    *(
        "/",
        "..",
        "ftp://x",
        "http://",
        "http://[::1",
        "http://127.0.0.1:1/x",
        "https://\ud800/",
        "{{ 1 }}",
        "<|image_pad|>",
        "<|im_end|>",
    ),
    *([], {}, [[]], [{}], [None], [0], [""], {"": {}}, [[[[[[]]]]]], ["x"] * 300, [0] * 2000, {"a": {"b": [{"c": None}]}}),
    *({"type": "object"}, {"type": "nothing"}, {"$ref": "#"}, {"anyOf": [{"$ref": "#"}]}, {"pattern": "("}, {"enum": []}),
)
_scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
_anything = st.recursive(
    _scalars,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(_NAMES) | st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)


class Bodies:
    def __init__(self, schema: Schema, components: Mapping[str, Schema]) -> None:
        self._root, self._components = schema, components

    def fields(self) -> list[Path]:
        return sorted(set(self._fields(self._root, (), 0)))

    def strategy(self, path: Path) -> st.SearchStrategy[Any]:
        """Bodies with what belongs there, and with what does not."""
        found = [self._values(schema) for schema in self._schemas_at(self._root, path)]
        value = st.one_of(st.sampled_from(_ODD), _anything, *found)
        return value.map(lambda chosen: self._with(self._root, path, chosen))

    def good(self) -> Any:
        return self._least(self._root)

    # ---- The schema

    def _options(self, schema: Schema) -> list[Schema]:
        """What a value may be: without references and unions."""
        if "$ref" in schema:
            return self._options(self._components[schema["$ref"].rsplit("/", 1)[1]])
        if "anyOf" in schema:
            return [option for inner in schema["anyOf"] for option in self._options(inner)]
        return [schema]

    def _inside(self, schema: Schema) -> Iterator[tuple[str, Schema]]:
        yield from schema.get("properties", {}).items()
        if isinstance(schema.get("items"), Mapping):
            yield "[]", schema["items"]
        if isinstance(schema.get("additionalProperties"), Mapping):
            yield "{}", schema["additionalProperties"]

    def _fields(self, schema: Schema, path: Path, level: int) -> Iterator[Path]:
        if level > MOST_LEVELS:
            return
        for option in self._options(schema):
            for name, inner in self._inside(option):
                yield (*path, name)
                yield from self._fields(inner, (*path, name), level + 1)

    def _schemas_at(self, schema: Schema, path: Path) -> list[Schema]:
        if not path:
            return self._options(schema)
        found = [inner for option in self._options(schema) for name, inner in self._inside(option) if name == path[0]]
        return [deeper for inner in found for deeper in self._schemas_at(inner, path[1:])]

    def _has(self, schema: Schema, path: Path) -> bool:
        return bool(self._schemas_at(schema, path))

    # ---- Values

    def _least(self, schema: Schema) -> Any:
        """The smallest good value."""
        options = self._options(schema)
        option = next((one for one in options if one.get("type") == "string"), options[0])
        if "enum" in option:
            return option["enum"][0]
        if "const" in option:
            return option["const"]
        kind = option.get("type")
        if kind == "object":
            return {name: self._least(option["properties"][name]) for name in option.get("required", ())}
        if kind == "array":
            return [self._least(option["items"])] * option.get("minItems", 0)
        return {"string": "Hello", "integer": max(1, option.get("minimum", 1)), "number": 1.0, "boolean": True}.get(str(kind))

    def _with(self, schema: Schema, path: Path, value: Any) -> Any:
        """The smallest good value that has something of ours in a place."""
        if not path:
            return value
        option = next(one for one in self._options(schema) if self._has(one, path))
        if path[0] == "[]":
            return [self._with(option["items"], path[1:], value)]
        if path[0] == "{}":
            return {"a": self._with(option["additionalProperties"], path[1:], value)}
        made = {name: self._least(option["properties"][name]) for name in option.get("required", ()) if name != path[0]}
        return {**made, path[0]: self._with(option["properties"][path[0]], path[1:], value)}

    def _values(self, schema: Schema) -> st.SearchStrategy[Any]:
        """What may stand there, most of it at the edge of what may."""
        if "enum" in schema:
            return st.sampled_from(schema["enum"])
        kind = schema.get("type")
        if kind == "integer":
            least, most = schema.get("minimum", -(2**63)), schema.get("maximum", 2**63)
            return st.sampled_from((least, most, least - 1, most + 1, min(most, least + 1))) | st.integers(0, 4)
        if kind == "number":
            return st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from((0.0, 1.0, 2.0, -1.0))
        if kind == "string":
            return st.text(max_size=40)
        if kind == "array":
            return st.lists(
                st.just(self._least(schema["items"])) if isinstance(schema.get("items"), Mapping) else _anything, max_size=4
            )
        if kind == "object" and "properties" not in schema:
            return st.dictionaries(st.sampled_from(_NAMES), _anything, max_size=3)
        return st.just(self._least(schema))
