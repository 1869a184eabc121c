"""PageCache against its slow model: sequences come, grow, share and go in any order, with few pages and short words."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from cache.page_model import PageModel
from cache.paths import keys_of
from sightline.cache.pages import Node, PageCache

STATE_LIMIT = 40
WORDS = st.text(alphabet="ab", max_size=6)
Thing = TypeVar("Thing")
TOKENS = st.text(alphabet="xy", min_size=1, max_size=3)
CHOICE = st.integers(0, 1 << 20)  # of one in a list, by remainder


@dataclass(eq=False)
class Sequence:
    word: str  # pages that it holds in the tree, a letter each
    nodes: list[Node]
    private: list[int] = field(default_factory=list)
    pinned: list[Node] = field(default_factory=list)


def beginning_key(before: bytes, tokens: str) -> bytes:
    return before + b"/" + tokens.encode()


def one_of(things: list[Thing], choice: int) -> Thing:
    return things[choice % len(things)]


class PagesMachine(RuleBasedStateMachine):
    @initialize(pages=st.integers(2, 14))
    def begin(self, pages: int) -> None:
        self.released: list[object] = []
        self.cache = PageCache(pages, 16, STATE_LIMIT, self.released.append)
        self.model = PageModel(pages, STATE_LIMIT)
        self.sequences: list[Sequence] = []
        self.handles = 0

    @rule(word=WORDS, need_state=st.booleans())
    def start(self, word: str, need_state: bool) -> None:
        keys = keys_of(word)
        nodes = self.cache.match(keys, need_state)
        assert [node.key for node in nodes] == keys[: self.model.match(keys, need_state)]
        self.cache.lock(nodes)
        self.model.lock([node.key for node in nodes])
        self.sequences.append(Sequence(word[: len(nodes)], nodes))

    @rule(choice=CHOICE, count=st.integers(0, 4))
    def allocate(self, choice: int, count: int) -> None:
        if not self.sequences:
            return
        if count > self.model.available:
            with pytest.raises(AssertionError, match="can be had"):
                self.cache.allocate(count)
            return
        pages = self.cache.allocate(count)
        assert len(set(pages)) == count
        assert set(pages) <= self.model.allocate(count)
        self.model.private |= set(pages)
        one_of(self.sequences, choice).private += pages

    @rule(choice=CHOICE, letter=st.sampled_from("ab"))
    def share(self, choice: int, letter: str) -> None:
        if any(sequence.private for sequence in self.sequences):
            self.share_one(one_of([sequence for sequence in self.sequences if sequence.private], choice), letter)

    def share_one(self, sequence: Sequence, letter: str) -> None:
        parent = sequence.nodes[-1] if sequence.nodes else None
        key, page = keys_of(sequence.word + letter)[-1], sequence.private.pop(0)
        node = self.cache.insert(parent, key, page)
        self.model.insert(parent.key if parent else None, key, page)
        assert (node.key, node.page, node.parent) == (key, self.model.nodes[key].page, parent)
        sequence.word += letter
        sequence.nodes.append(node)

    @rule(choice=CHOICE, tokens=TOKENS, ends=st.integers(1, 3))
    def leave_unfinished(self, choice: int, tokens: str, ends: int) -> None:
        """A sequence leaves the page that it was filling, of which one beginning or two are worth finding."""
        if any(sequence.private for sequence in self.sequences):
            sequence = one_of([sequence for sequence in self.sequences if sequence.private], choice)
            parent, page = sequence.nodes[-1] if sequence.nodes else None, sequence.private.pop(0)
            before, found = sequence.word.encode(), sorted({tokens[:ends], tokens}, key=len)
            keys = [(beginning_key(before, beginning), len(beginning)) for beginning in found]
            new = [key for key, _ in keys if key not in self.cache.beginnings]
            self.cache.insert_partial(parent, before, keys, page)
            self.model.insert_partial(before or None, new[-1] if new else b"", found, page)

    @rule(choice=CHOICE, tokens=TOKENS)
    def note_beginning(self, choice: int, tokens: str) -> None:
        """A full page begins with what is worth finding."""
        nodes = [node for sequence in self.sequences for node in sequence.nodes]
        if nodes:
            node = one_of(nodes, choice)
            before = node.parent.key if node.parent else b""
            self.cache.beginnings.add(node, before, beginning_key(before, tokens), len(tokens))
            if (before, tokens) not in self.model.beginnings:
                self.model.nodes[node.key].beginnings.add((before, tokens))

    @rule(choice=CHOICE, tokens=TOKENS)
    def find_beginning(self, choice: int, tokens: str) -> None:
        """It is locked for a while, or its page is taken over."""
        if not self.sequences:
            return
        sequence = one_of(self.sequences, choice)
        before = sequence.word.encode()
        found = self.cache.beginnings.longest(before, len(tokens), lambda count: beginning_key(before, tokens[:count]))
        assert (found and (found.node.key, found.count)) == self.model.longest(before, tokens)
        if found is None:
            return
        if found.node.locks == found.node.children == 0 and choice % 2:
            self.model.take_over(found.node.key)
            page = self.cache.take_over(found.node)
            self.model.private.add(page)
            sequence.private.append(page)
            return
        for act, of_model in ((self.cache.lock, self.model.lock), (self.cache.unlock, self.model.unlock)):
            act([found.node])
            of_model([found.node.key])
            self.same_as_the_model()

    @rule(word=WORDS, need_state=st.booleans(), nbytes=st.integers(1, 25))
    def serve(self, word: str, need_state: bool, nbytes: int) -> None:
        """What an engine does most: start a word and compute all of it that fits, with a state at its end."""
        self.start(word, need_state)
        for letter in word[len(self.sequences[-1].nodes) :]:
            self.allocate(-1, 1)
            if not self.sequences[-1].private:
                return
            self.share_one(self.sequences[-1], letter)
            self.same_as_the_model()
        if word and need_state:
            self.attach(-1, nbytes)

    @rule(choice=CHOICE)
    def free(self, choice: int) -> None:
        if not self.sequences:
            return
        sequence = one_of(self.sequences, choice)
        self.cache.free(sequence.private)
        self.model.private -= set(sequence.private)
        sequence.private = []

    @rule(choice=CHOICE, keep=st.integers(0, 5))
    def cut(self, choice: int, keep: int) -> None:
        if not self.sequences:
            return
        sequence = one_of(self.sequences, choice)
        leaving = sequence.nodes[keep:]
        for node in [node for node in sequence.pinned if node in leaving]:
            self.unpin_one(sequence, node)
        self.cache.unlock(leaving)
        self.model.unlock([node.key for node in leaving])
        sequence.nodes, sequence.word = sequence.nodes[:keep], sequence.word[:keep]

    @rule(choice=CHOICE)
    def finish(self, choice: int) -> None:
        if not self.sequences:
            return
        sequence = one_of(self.sequences, choice)
        self.cut(choice, 0)
        self.free(choice)
        self.sequences.remove(sequence)

    @rule(choice=CHOICE, nbytes=st.integers(1, 25))
    def attach(self, choice: int, nbytes: int) -> None:
        nodes = [node for sequence in self.sequences for node in sequence.nodes]
        if not nodes:
            return
        node = one_of(nodes, choice)
        self.handles += 1
        assert self.cache.attach_state(node, self.handles, nbytes) == self.model.attach(node.key, self.handles, nbytes)

    @rule(choice=CHOICE)
    def pin(self, choice: int) -> None:
        places = [(sequence, node) for sequence in self.sequences for node in sequence.nodes if node.state]
        if not places:
            return
        sequence, node = one_of(places, choice)
        assert self.cache.pin_state(node) == self.model.pin(node.key)
        sequence.pinned.append(node)

    @rule(choice=CHOICE)
    def unpin(self, choice: int) -> None:
        places = [(sequence, node) for sequence in self.sequences for node in sequence.pinned]
        if places:
            self.unpin_one(*one_of(places, choice))

    @rule(really=st.integers(0, 9))
    def clear(self, really: int) -> None:
        if really == 0:  # else nothing would ever grow old
            self.cache.clear()
            self.model.clear()

    def unpin_one(self, sequence: Sequence, node: Node) -> None:
        sequence.pinned.remove(node)
        self.cache.unpin_state(node)
        self.model.unpin(node.key)

    @invariant()
    def same_as_the_model(self) -> None:
        cache, model = self.cache, self.model
        cache.check_integrity()
        assert (cache.free_pages, cache.available_pages) == (len(model.free), model.available)
        assert (cache.private_pages, cache.tree_pages) == (len(model.private), len(model.nodes))
        assert cache.total_locks == sum(node.locks for node in model.nodes.values())
        for key, node in model.nodes.items():
            found = cache.match(keys_of(key.decode()))[-1] if b"/" not in key else cache._nodes[key]
            assert (found.key, found.page, found.locks) == (key, node.page, node.locks)
            assert (found.state and found.state.handle) == (node.state and node.state.handle)
        assert cache.state_bytes == model.state_bytes
        assert sorted(self.released) == sorted(model.released)
        assert len(set(self.released)) == len(self.released)
        assert (cache.hits, cache.evictions, cache.state_evictions) == (model.hits, model.evictions, model.state_evictions)

    def teardown(self) -> None:
        while self.sequences:
            self.finish(0)
            self.same_as_the_model()
        self.cache.clear()
        assert self.cache.free_pages == self.cache.usable_pages


# Red with almost any change of PageCache or StatePool: which page goes when, what is counted, what is released.
TestPages = PagesMachine.TestCase
TestPages.settings = settings(max_examples=200, stateful_step_count=50, deadline=None)

# How often each rule is taken in a long run, and with what.
Moves = list[tuple[float, Callable[[PagesMachine, random.Random], None]]]
MOVES: Moves = [
    (6, lambda machine, dice: machine.serve(any_word(dice), dice.random() < 0.4, dice.randint(1, 25))),
    (2, lambda machine, dice: machine.start(any_word(dice), dice.random() < 0.5)),
    (3, lambda machine, dice: machine.allocate(dice.randrange(99), dice.randint(0, 4))),
    (3, lambda machine, dice: machine.share(dice.randrange(99), dice.choice("ab"))),
    (1, lambda machine, dice: machine.free(dice.randrange(99))),
    (2, lambda machine, dice: machine.cut(dice.randrange(99), dice.randint(0, 5))),
    (8, lambda machine, dice: machine.finish(dice.randrange(99))),
    (3, lambda machine, dice: machine.attach(dice.randrange(99), dice.randint(1, 25))),
    (1, lambda machine, dice: machine.pin(dice.randrange(99))),
    (1, lambda machine, dice: machine.unpin(dice.randrange(99))),
    (3, lambda machine, dice: machine.leave_unfinished(dice.randrange(99), any_tokens(dice), dice.randint(1, 3))),
    (1, lambda machine, dice: machine.note_beginning(dice.randrange(99), any_tokens(dice))),
    (3, lambda machine, dice: machine.find_beginning(dice.randrange(99), any_tokens(dice))),
    (0.1, lambda machine, dice: machine.clear(0)),
]


def any_word(dice: random.Random) -> str:
    return "".join(dice.choice("ab") for _ in range(dice.randint(0, 7)))


def any_tokens(dice: random.Random) -> str:
    return "".join(dice.choice("xy") for _ in range(dice.randint(1, 3)))


# Red if something goes wrong only after a long time or in a larger tree; short runs rarely get to evict.
@pytest.mark.parametrize("seed", range(8))
def test_a_long_run(seed: int) -> None:
    dice = random.Random(seed)
    machine = PagesMachine()
    machine.begin(pages=10 + 5 * seed)
    for move in dice.choices([move for _, move in MOVES], [weight for weight, _ in MOVES], k=6000):
        move(machine, dice)
        machine.same_as_the_model()
    assert machine.cache.evictions > 100 and machine.cache.state_evictions > 100
    machine.teardown()
