"""Pages of the key/value memory: who has which, and the tree of prefixes that sequences share.

Each page is exactly one of

    scratch   page 0: writes that nobody reads go there (tokens whose keys and values are stored already)
    free      handed out next
    private   a running sequence writes to it
    tree      known by its key, shared, never written again; a Node. It is full, or a leaf that its sequence left unfinished

    a sequence   [ node ─ node ─ node ][ private, private ]
                   locked by it          full ones are inserted under its last node, the last one is being filled

Whoever needs only the beginning of a page of the tree (partial.py) locks it until it is copied to a private page.

The one idea of eviction: a sequence locks and unlocks whole prefixes, so a node is unlocked no earlier than its children. If
nodes line up as they become unlocked, deepest first, the head of that queue is always the leaf unused for longest, and taking
it is O(1).
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence

from sightline.cache.node import Node
from sightline.cache.partial import Beginnings
from sightline.cache.states import StatePool

__all__ = ["Node", "PageCache"]

_FREE, _PRIVATE, _TREE, _SCRATCH = range(4)


class PageCache:
    """Bookkeeping of pages; their contents live elsewhere.

    A sequence holds one path from a first page downwards: the nodes it locked and those it inserted, each once. So a node's
    locks are at least the sum of its children's, and below an unlocked node everything is unlocked.
    """

    def __init__(
        self,
        pages: int,
        page_size: int,
        state_bytes_limit: int = 0,
        release_state: Callable[[object], None] | None = None,
    ) -> None:
        assert pages > 1 and page_size > 0, f"{pages} pages of {page_size} tokens, the first of them scratch"
        self.page_size = page_size
        self.usable_pages = pages - 1
        self.hits = 0  # pages locked because a match found them
        self.evictions = 0  # pages of the tree taken by allocate
        self._use = bytearray(pages)  # what each page is: _FREE, …
        self._use[0] = _SCRATCH
        self._free = list(range(pages - 1, 0, -1))  # taken from the end
        self._nodes: dict[bytes, Node] = {}
        self._unlocked: OrderedDict[Node, None] = OrderedDict()  # the queue: first to go first, children before their parent
        self._states = StatePool(state_bytes_limit, release_state)
        self.beginnings = Beginnings()
        self._clock = 0  # counts operations that use nodes

    @property
    def free_pages(self) -> int:
        """Pages that can be had without forgetting anything."""
        return len(self._free)

    @property
    def available_pages(self) -> int:
        """The most that `allocate` can give: free pages and those of unlocked nodes."""
        return len(self._free) + len(self._unlocked)

    @property
    def tree_pages(self) -> int:
        return len(self._nodes)

    @property
    def private_pages(self) -> int:
        return self.usable_pages - len(self._free) - len(self._nodes)

    @property
    def total_locks(self) -> int:
        """Locks of all nodes together, for checks. O(nodes)."""
        return sum(node.locks for node in self._nodes.values())

    @property
    def state_bytes(self) -> int:
        return self._states.bytes_used

    @property
    def state_evictions(self) -> int:
        return self._states.evictions

    # ---- Prefixes

    def match(self, keys: Sequence[bytes], need_state: bool = False) -> list[Node]:
        """The nodes of the longest known prefix of `keys`, in order; with `need_state`, of the longest that ends at a state.

        Nothing is locked or marked as used: lock the nodes before the next `allocate`, which may take them.
        """
        found: list[Node] = []
        with_state = 0
        for key in keys:
            node = self._nodes.get(key)
            if node is None:
                break
            found.append(node)
            if node.state is not None:
                with_state = len(found)
        return found[:with_state] if need_state else found

    def lock(self, nodes: Sequence[Node]) -> None:
        """A sequence uses these nodes, which continue the path that it holds, in order. They stay until it unlocks them."""
        self._clock += 1
        clock, known, unlocked = self._clock, self._nodes, self._unlocked
        for node in nodes:  # there are thousands where a prompt has many images: _hold, without the calls
            assert known.get(node.key) is node, f"{node} is no longer in the tree"
            if node.locks == 0:
                del unlocked[node]
            node.locks += 1
            node.last_used = clock
            parent = node.parent
            assert parent is None or parent.locks >= node.locks, f"{node} is locked more often than its parent"
        self.hits += len(nodes)

    def unlock(self, nodes: Sequence[Node]) -> None:
        """The sequence gives up the end of its path, or all of it; `nodes` are in order, as for `lock`."""
        self._clock += 1
        for node in reversed(nodes):
            assert node.locks > 0, f"{node} is not locked"
            node.locks -= 1
            node.last_used = self._clock
            if node.locks == 0:
                assert node.state is None or node.state.pins == 0, f"{node} is unlocked while its state is pinned"
                self._unlocked[node] = None

    def insert(self, parent: Node | None, key: bytes, page: int) -> Node:
        """A full private page becomes a node under `parent`, the end of the caller's path, and is locked for the caller.

        If the key is known, because another sequence was faster, that node is locked and returned, and `page` is freed: the
        caller goes on with the page of the node that it gets.
        """
        assert self._use[page] == _PRIVATE, f"page {page} is not private and cannot become part of the tree"
        self._clock += 1
        node = self._nodes.get(key)
        if node is None:
            node = self._nodes[key] = Node(page, key, parent)
            self._use[page] = _TREE
            if parent is not None:
                parent.children += 1
        else:
            assert node.parent is parent, f"{node} is known under another parent: a key must contain that of the page before"
            self.free([page])
        self._hold(node)
        return node

    def insert_partial(self, parent: Node | None, before: bytes, beginnings: Sequence[tuple[bytes, int]], page: int) -> None:
        """A private page that was filled in part becomes a leaf under `parent`, the end of the caller's path, locked by nobody.

        `before` is the parent's key, or the root; `beginnings` are keys and lengths, the longest last. If all are known,
        the page is freed.
        """
        assert self._use[page] == _PRIVATE, f"page {page} is not private and cannot become part of the tree"
        assert parent is None or parent.locks > 0, f"{parent} must be locked while a page is inserted under it"
        new = [(key, count) for key, count in beginnings if key not in self.beginnings]
        if not new:
            self.free([page])
            return
        self._clock += 1
        node = self._nodes[new[-1][0]] = Node(page, new[-1][0], parent)
        node.last_used = self._clock
        self._use[page] = _TREE
        self._unlocked[node] = None
        if parent is not None:
            parent.children += 1
        for key, count in new:
            self.beginnings.add(node, before, key, count)

    def take_over(self, node: Node) -> int:
        """The page of an unlocked leaf becomes private to the caller with what is in it, and is known no more."""
        assert node.locks == 0 and node.children == 0, f"{node} is not an unlocked leaf"
        del self._unlocked[node]
        self._forget(node)
        self._use[node.page] = _PRIVATE
        self.evictions += 1
        return node.page

    def _hold(self, node: Node) -> None:
        if node.locks == 0:
            self._unlocked.pop(node, None)  # a new node is not in it
        node.locks += 1
        node.last_used = self._clock
        assert node.parent is None or node.parent.locks >= node.locks, f"{node} is locked more often than its parent"

    # ---- Private pages

    def allocate(self, count: int) -> list[int]:
        """Private pages for the caller; where free ones do not suffice, from unlocked leaves, longest unused first."""
        assert 0 <= count <= self.available_pages, f"{count} pages are asked for, {self.available_pages} can be had"
        while len(self._free) < count:
            self._forget_first()
            self.evictions += 1
        rest = len(self._free) - count
        pages = self._free[rest:]
        del self._free[rest:]
        for page in pages:
            self._use[page] = _PRIVATE
        pages.reverse()
        return pages

    def free(self, pages: Sequence[int]) -> None:
        """Private pages that nobody writes or reads any more."""
        for page in pages:
            assert self._use[page] == _PRIVATE, f"page {page} is not private and cannot be freed"
            self._use[page] = _FREE
            self._free.append(page)

    def clear(self) -> None:
        """Forget all unlocked nodes, and all states that are not pinned, also those of locked nodes."""
        while self._unlocked:
            self._forget_first()
        self._states.clear()

    def _forget_first(self) -> None:
        node, _ = self._unlocked.popitem(last=False)
        assert node.children == 0, f"{node} would be forgotten before its children"
        self._forget(node)
        self._use[node.page] = _FREE
        self._free.append(node.page)

    def _forget(self, node: Node) -> None:
        if node.state is not None:
            self._states.drop(node)
        if node.begins:
            self.beginnings.drop(node)
        del self._nodes[node.key]
        if node.parent is not None:
            node.parent.children -= 1

    # ---- States

    def attach_state(self, node: Node, handle: object, nbytes: int) -> bool:
        """Keep a snapshot of the recurrent state at the end of the node's page; the longest unused ones make room for it.

        True: the cache owns the handle and will release it once. False: it does not fit beside pinned states, or the node has a
        state already (of an equal prefix, so an equal one), and the handle is still the caller's.
        """
        assert self._nodes.get(node.key) is node, f"{node} is no longer in the tree"
        return self._states.attach(node, handle, nbytes)

    def evict_state(self) -> bool:
        """Drops the state unused for longest, and keeps its page. False if none can go."""
        return self._states.evict()

    def drop_state(self, node: Node) -> None:
        """The node's state is not worth keeping; it stays while it is pinned. The node may have lost it before."""
        if node.state is not None and not node.state.pins:
            self._states.drop(node)

    def pin_state(self, node: Node) -> object:
        """The handle of the node's state, which stays until it is unpinned. The caller has locked the node and unpins first."""
        assert node.locks > 0, f"{node} must be locked before its state is pinned"
        return self._states.pin(node)

    def unpin_state(self, node: Node) -> None:
        self._states.unpin(node)

    # ---- Self-check

    def check_integrity(self) -> None:
        """Raise AssertionError with a sentence if its state is inconsistent. O(pages)."""
        nodes = self._nodes.values()
        self._check_pages()
        locks_below = dict.fromkeys(nodes, 0)
        children = dict.fromkeys(nodes, 0)
        for key, node in self._nodes.items():
            assert node.key == key, f"{node} is filed under another key"
            assert node.locks >= 0, f"{node} has a negative number of locks"
            assert node.depth == (0 if node.parent is None else node.parent.depth + 1), f"{node} has a wrong depth"
            if node.parent is not None:
                assert node.parent in children, f"the parent of {node} is not in the tree"
                children[node.parent] += 1
                locks_below[node.parent] += node.locks
        for node in nodes:
            assert node.children == children[node], f"{node} has {children[node]} children"
            assert node.locks >= locks_below[node], f"{node} is locked less often than its children, {locks_below[node]} times"
        self._check_queue()
        self._states.check_integrity(nodes)
        self.beginnings.check_integrity(locks_below.keys(), self.page_size)

    def _check_pages(self) -> None:
        assert self._use[0] == _SCRATCH and self._use.count(_SCRATCH) == 1, "page 0, and no other, is scratch"
        for page in self._free:
            assert self._use[page] == _FREE, f"page {page} is in the list of free pages but is not free"
        assert len(set(self._free)) == len(self._free), "a page is twice in the list of free pages"
        assert len(self._free) == self._use.count(_FREE), "a free page is not in the list of free pages"
        for node in self._nodes.values():
            assert self._use[node.page] == _TREE, f"the page of {node} is not marked as part of the tree"
        assert len({node.page for node in self._nodes.values()}) == len(self._nodes), "two nodes have the same page"
        assert len(self._nodes) == self._use.count(_TREE), "a page is marked as part of the tree but no node has it"

    def _check_queue(self) -> None:
        unlocked = {node for node in self._nodes.values() if node.locks == 0}
        assert set(self._unlocked) == unlocked, "the queue of eviction does not hold exactly the unlocked nodes"
        passed: set[Node] = set()
        last_used = 0
        for node in self._unlocked:
            assert last_used <= node.last_used <= self._clock, f"{node} stands in the queue of eviction before one used earlier"
            assert node.parent not in passed, f"the parent of {node} would be forgotten before it"
            last_used = node.last_used
            passed.add(node)
