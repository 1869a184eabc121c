"""uuid → digest and header of a medium that was seen before, per caller, bounded. An alias, never a key of a cache."""

from collections import OrderedDict
from typing import Literal

from sightline.errors import MissingMediaError
from sightline.types import MediaRef

Kind = Literal["image", "video"]


class MediaNames:
    """One caller never sees another's names. The callers, and the names of each, are forgotten longest unused first."""

    def __init__(self, per_caller: int, callers: int = 1000) -> None:
        self._per_caller, self._callers = per_caller, callers
        self._known: OrderedDict[str, OrderedDict[tuple[str, str], MediaRef]] = OrderedDict()

    def remember(self, caller: str, name: str, ref: MediaRef) -> None:
        names = self._known.setdefault(caller, OrderedDict())
        self._known.move_to_end(caller)
        names[ref.kind, name] = MediaRef(ref.kind, b"", ref.digest, ref.header, f"with uuid {name!r}")
        names.move_to_end((ref.kind, name))
        while len(names) > self._per_caller:
            names.popitem(last=False)
        while len(self._known) > self._callers:
            self._known.popitem(last=False)

    def recall(self, caller: str, kind: Kind, name: str) -> MediaRef:
        """The medium without its bytes."""
        names = self._known.get(caller, OrderedDict())
        ref = names.get((kind, name))
        if ref is None:
            raise MissingMediaError(f"No {kind} with uuid {name!r} is known; send it with its URL first.")
        names.move_to_end((kind, name))
        self._known.move_to_end(caller)
        return ref
