"""State snapshots at nodes of the prefix tree, within a budget of bytes.

A hybrid model (recurrent layers between attention layers) can go on from a prefix only where it has a snapshot of its recurrent
state. A snapshot is much larger than a page, so states have a budget and an order of eviction of their own.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable

from sightline.cache.node import Node, State


class StatePool:
    """Which nodes have a state, how many bytes that takes, and which state goes next.

    The pool owns a handle from the moment `attach` returns True and calls `release` on it exactly once. `release` must not call
    back into the cache. A state is used when it is attached and when its last pin is dropped; the one unused for longest goes
    first.
    """

    def __init__(self, bytes_limit: int, release: Callable[[object], None] | None) -> None:
        self.bytes_limit = bytes_limit
        self.bytes_used = 0
        self.evictions = 0  # states dropped to make room for others
        self._release = release
        self._pinned_bytes = 0
        self._idle: OrderedDict[Node, None] = OrderedDict()  # nodes with an unpinned state, longest unused first

    def attach(self, node: Node, handle: object, nbytes: int) -> bool:
        """False, and nothing changes, if the node has a state already or if pinned states leave no room for this one."""
        assert nbytes > 0, f"a state of {nbytes} bytes"
        if node.state is not None or self._pinned_bytes + nbytes > self.bytes_limit:
            return False
        while self.bytes_used + nbytes > self.bytes_limit:
            self.evict()
        node.state = State(handle, nbytes)
        self.bytes_used += nbytes
        self._idle[node] = None
        return True

    def evict(self) -> bool:
        """Drops the state unused for longest. False if all are pinned, or there is none."""
        if not self._idle:
            return False
        self.drop(next(iter(self._idle)))
        self.evictions += 1
        return True

    def pin(self, node: Node) -> object:
        state = node.state
        assert state is not None, f"{node} has no state to pin"
        if state.pins == 0:
            del self._idle[node]
            self._pinned_bytes += state.nbytes
        state.pins += 1
        return state.handle

    def unpin(self, node: Node) -> None:
        state = node.state
        assert state is not None and state.pins > 0, f"the state of {node} is not pinned"
        state.pins -= 1
        if state.pins == 0:
            self._pinned_bytes -= state.nbytes
            self._idle[node] = None

    def drop(self, node: Node) -> None:
        """The node loses its state, if it has one, and the handle is released."""
        state = node.state
        if state is None:
            return
        assert state.pins == 0, f"the state of {node} is pinned and cannot be dropped"
        del self._idle[node]
        node.state = None
        self.bytes_used -= state.nbytes
        if self._release is not None:
            self._release(state.handle)

    def clear(self) -> None:
        """Drop every state that is not pinned."""
        while self._idle:
            self.drop(next(iter(self._idle)))

    def check_integrity(self, nodes: Iterable[Node]) -> None:
        """`nodes` are all nodes of the tree."""
        states = {node: node.state for node in nodes if node.state is not None}
        assert all(state.pins >= 0 for state in states.values()), "a state has a negative number of pins"
        idle = {node for node, state in states.items() if state.pins == 0}
        assert idle == set(self._idle), "the order of eviction of states does not hold exactly the unpinned states"
        total = sum(state.nbytes for state in states.values())
        pinned = sum(state.nbytes for state in states.values() if state.pins > 0)
        assert self.bytes_used == total, f"states take {total} bytes, {self.bytes_used} are counted"
        assert self._pinned_bytes == pinned, f"pinned states take {pinned} bytes, {self._pinned_bytes} are counted"
        assert total <= self.bytes_limit, f"states take {total} bytes, {self.bytes_limit} are allowed"
        for node, state in states.items():
            assert state.pins == 0 or node.locks > 0, f"{node} has a pinned state but is not locked"
