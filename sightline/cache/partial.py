"""Beginnings of pages: what is known of a page by its first tokens alone, so that a prompt that ends inside one is found again.

A page that other tokens follow, or that nobody filled, has a key for each beginning that is worth finding: of the page before
it and of its first tokens (keys.page_key tells lengths apart). Who finds one copies the page and goes on in the copy.

    page        p p p p p a a a a . . .      a prompt ends after 5 tokens, what was computed of its answer after 9
    beginnings            5       9
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass

from sightline.cache.node import Node


@dataclass(frozen=True, slots=True)
class Beginning:
    node: Node
    before: bytes  # key of the page before it, or the root
    count: int  # tokens


class Beginnings:
    """Which beginnings of which pages are known. A node's go with it."""

    def __init__(self) -> None:
        self._known: dict[bytes, Beginning] = {}  # by their own key
        self._counts: dict[bytes, dict[int, int]] = {}  # by the key of the page before: how many there are of each length

    def __contains__(self, key: bytes) -> bool:
        return key in self._known

    def add(self, node: Node, before: bytes, key: bytes, count: int) -> None:
        """One that is known already stays where it is."""
        if key in self._known:
            return
        self._known[key] = Beginning(node, before, count)
        counts = self._counts.setdefault(before, {})
        counts[count] = counts.get(count, 0) + 1
        node.begins += (key,)

    def longest(self, before: bytes, most: int, key_of: Callable[[int], bytes]) -> Beginning | None:
        """The longest known one of at most `most` tokens behind a page. `key_of` is asked only for lengths that are there."""
        counts = self._counts.get(before)
        for count in sorted(counts, reverse=True) if counts else ():
            if count <= most and (found := self._known.get(key_of(count))) is not None:
                return found
        return None

    def drop(self, node: Node) -> None:
        for key in node.begins:
            gone = self._known.pop(key)
            counts = self._counts[gone.before]
            counts[gone.count] -= 1
            if not counts[gone.count]:
                del counts[gone.count]
            if not counts:
                del self._counts[gone.before]

    def check_integrity(self, nodes: Collection[Node], page_size: int) -> None:
        """`nodes` are all nodes of the tree."""
        counts: dict[bytes, dict[int, int]] = {}
        for key, found in self._known.items():
            assert found.node in nodes, f"a beginning of {found.node} is known, which is not in the tree"
            assert 0 < found.count < page_size, f"a beginning of {found.count} tokens of a page of {page_size}"
            assert key in found.node.begins, f"a beginning of {found.node} would outlive it"
            assert found.node.parent is None or found.node.parent.key == found.before, f"{found.node} does not follow that page"
            assert found.node.key != key or not found.node.children, f"{found.node} is filled in part, but others follow it"
            lengths = counts.setdefault(found.before, {})
            lengths[found.count] = lengths.get(found.count, 0) + 1
        assert sum(len(node.begins) for node in nodes) == len(self._known), "a beginning is that of two nodes, or of none"
        assert counts == self._counts, "lengths of beginnings are miscounted"
