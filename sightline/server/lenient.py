"""Bodies whose unknown fields are left out (--ignore-unknown-fields) instead of refused. Known ones may still be refused."""

import logging
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import inspect

T = TypeVar("T")
_MOST_NAMES = 100  # that the log is told of
log = logging.getLogger("sightline.server")


class LenientDecoder(Generic[T]):
    def __init__(self, kind: type[T]) -> None:
        self._kind, self._type = kind, inspect.type_info(kind)
        self._told: set[str] = set()

    def decode(self, body: bytes, /) -> T:
        return msgspec.convert(self._known(msgspec.json.decode(body), self._type), self._kind)

    def _known(self, value: Any, kind: inspect.Type) -> Any:
        """The value without fields that its type does not have, at any depth."""
        kinds = kind.types if isinstance(kind, inspect.UnionType) else (kind,)
        if isinstance(value, list):
            items = next((one.item_type for one in kinds if isinstance(one, inspect.ListType)), None)
            return value if items is None else [self._known(item, items) for item in value]
        structs = [one for one in kinds if isinstance(one, inspect.StructType)]
        chosen = next((one for one in structs if _is_of(value, one)), None)
        if not isinstance(value, dict) or chosen is None or any(isinstance(one, inspect.DictType) for one in kinds):
            return value
        fields = {field.encode_name: field.type for field in chosen.fields}
        found = {name: self._known(inner, fields[name]) for name, inner in value.items() if name in fields}
        if chosen.tag_field is not None and chosen.tag_field in value:
            found[chosen.tag_field] = value[chosen.tag_field]
        for name in value.keys() - found.keys():
            self._tell(name)
        return found

    def _tell(self, name: str) -> None:
        shown = name[:100]
        if shown not in self._told and len(self._told) < _MOST_NAMES:
            self._told.add(shown)
            log.warning("Requests have the field %r, which is unknown and ignored.", shown)


def _is_of(value: Any, struct: inspect.StructType) -> bool:
    return isinstance(value, dict) and (struct.tag_field is None or value.get(struct.tag_field) == struct.tag)
