"""One full page in the prefix tree, and the state snapshot that may stand at its end."""


class State:
    """A snapshot of what a recurrent layer remembers at the end of a page. Whoever made the handle knows what it is."""

    __slots__ = ("handle", "nbytes", "pins")

    def __init__(self, handle: object, nbytes: int) -> None:
        self.handle = handle
        self.nbytes = nbytes
        self.pins = 0  # readers right now; not evictable while there are any


class Node:
    """A page of the tree. Only the cache that made it changes it; others read."""

    __slots__ = ("begins", "children", "depth", "key", "last_used", "locks", "page", "parent", "state")

    def __init__(self, page: int, key: bytes, parent: "Node | None") -> None:
        self.page = page  # its number in the key/value memory
        self.key = key  # sightline.cache.keys.page_key
        self.parent = parent  # None: the first page of a sequence
        self.depth: int = 0 if parent is None else parent.depth + 1  # pages before it
        self.children = 0  # nodes whose parent this is
        self.locks = 0  # running sequences that use it
        self.last_used = 0  # by the cache's counter
        self.state: State | None = None
        self.begins: tuple[bytes, ...] = ()  # keys of its known beginnings (partial.py)

    def __repr__(self) -> str:
        state = "" if self.state is None else f", state of {self.state.nbytes} bytes"
        return f"Node(page {self.page}, depth {self.depth}, locks {self.locks}, children {self.children}{state})"
