"""PageCache as one would write it without caring for speed: plain dicts, and a scan for everything."""

from dataclasses import dataclass, field


@dataclass
class ModelState:
    handle: object
    nbytes: int
    last_used: int
    pins: int = 0


@dataclass
class ModelNode:
    page: int
    parent: bytes | None
    locks: int
    last_used: int
    state: ModelState | None = None
    beginnings: set[tuple[bytes, str]] = field(default_factory=set)  # key of the page before, tokens


@dataclass
class PageModel:
    pages: int
    state_bytes_limit: int
    nodes: dict[bytes, ModelNode] = field(default_factory=dict)
    private: set[int] = field(default_factory=set)
    released: list[object] = field(default_factory=list)
    hits: int = 0
    evictions: int = 0
    state_evictions: int = 0
    now: int = 0

    @property
    def free(self) -> set[int]:
        return set(range(1, self.pages)) - self.private - {node.page for node in self.nodes.values()}

    @property
    def available(self) -> int:
        return len(self.free) + sum(node.locks == 0 for node in self.nodes.values())

    @property
    def state_bytes(self) -> int:
        return sum(node.state.nbytes for node in self.nodes.values() if node.state)

    def match(self, keys: list[bytes], need_state: bool) -> int:
        lengths = [
            length
            for length in range(1, len(keys) + 1)
            if all(key in self.nodes for key in keys[:length]) and (self.nodes[keys[length - 1]].state or not need_state)
        ]
        return max(lengths, default=0)

    def lock(self, keys: list[bytes]) -> None:
        self.now += 1
        for key in keys:
            self.nodes[key].locks += 1
            self.nodes[key].last_used = self.now
        self.hits += len(keys)

    def unlock(self, keys: list[bytes]) -> None:
        self.now += 1
        for key in keys:
            self.nodes[key].locks -= 1
            self.nodes[key].last_used = self.now

    def allocate(self, count: int) -> set[int]:
        """Evicts as needed and returns the pages that may be given out: all that are free then."""
        while len(self.free) < count:
            parents = {node.parent for node in self.nodes.values()}
            leaves = [key for key, node in self.nodes.items() if node.locks == 0 and key not in parents]
            self._forget(min(leaves, key=lambda key: self.nodes[key].last_used))
            self.evictions += 1
        return self.free

    def insert(self, parent: bytes | None, key: bytes, page: int) -> None:
        self.now += 1
        self.private.remove(page)
        if key not in self.nodes:
            self.nodes[key] = ModelNode(page, parent, 0, self.now)
        self.nodes[key].locks += 1
        self.nodes[key].last_used = self.now

    def insert_partial(self, parent: bytes | None, key: bytes, tokens: list[str], page: int) -> None:
        """`tokens` of beginnings of the page behind `parent`, the longest last, which `key` is the key of."""
        new = {(parent or b"", beginning) for beginning in tokens} - self.beginnings.keys()
        self.private.remove(page)
        if new:
            self.now += 1
            self.nodes[key] = ModelNode(page, parent, 0, self.now, beginnings=new)

    @property
    def beginnings(self) -> dict[tuple[bytes, str], bytes]:
        """Whose they are."""
        return {beginning: key for key, node in self.nodes.items() for beginning in node.beginnings}

    def longest(self, before: bytes, tokens: str) -> tuple[bytes, int] | None:
        """Whose is the longest known beginning of these tokens, and how long it is."""
        known = self.beginnings
        lengths = [count for count in range(1, len(tokens) + 1) if (before, tokens[:count]) in known]
        return (known[before, tokens[: lengths[-1]]], lengths[-1]) if lengths else None

    def take_over(self, key: bytes) -> None:
        self._forget(key)
        self.evictions += 1

    def attach(self, key: bytes, handle: object, nbytes: int) -> bool:
        self.now += 1
        pinned = sum(node.state.nbytes for node in self.nodes.values() if node.state and node.state.pins)
        if self.nodes[key].state or pinned + nbytes > self.state_bytes_limit:
            return False
        while self.state_bytes + nbytes > self.state_bytes_limit:
            self._release(min((last_used, key) for last_used, key in self._unpinned_states())[1])
            self.state_evictions += 1
        self.nodes[key].state = ModelState(handle, nbytes, self.now)
        return True

    def pin(self, key: bytes) -> object:
        state = self.nodes[key].state
        assert state
        state.pins += 1
        return state.handle

    def unpin(self, key: bytes) -> None:
        self.now += 1
        state = self.nodes[key].state
        assert state
        state.pins -= 1
        state.last_used = self.now

    def clear(self) -> None:
        for key in [key for key, node in self.nodes.items() if node.locks == 0]:
            self._forget(key)
        for _, key in self._unpinned_states():
            self._release(key)

    def _unpinned_states(self) -> list[tuple[int, bytes]]:
        return [(node.state.last_used, key) for key, node in self.nodes.items() if node.state and not node.state.pins]

    def _release(self, key: bytes) -> None:
        state = self.nodes[key].state
        assert state
        self.released.append(state.handle)
        self.nodes[key].state = None

    def _forget(self, key: bytes) -> None:
        if self.nodes[key].state:
            self._release(key)
        del self.nodes[key]
