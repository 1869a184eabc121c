"""What the prefix tree knows of a sequence: keys of the pages that its tokens fill, and how many of them it has.

Beginnings of pages (cache/partial.py) are known of models whose layers all have keys and values. A state cannot be cut back to
the middle of a page.
"""

from collections.abc import Sequence as Seq

from sightline.cache.keys import VisionRun, page_key, page_keys
from sightline.cache.pages import Node
from sightline.cache.partial import Beginning
from sightline.schedule.state import Schedule, Sequence

_WORTH_KEEPING = 2  # tokens of a page: a prompt of one more than is known computes that one anyway


def extend_keys(sequence: Sequence) -> None:
    """Keys of all pages that the sequence's known tokens fill."""
    size, known = sequence.page_size, len(sequence.keys)
    full = sequence.known // size
    if known * size >= sequence.prompt_tokens:  # pages of the answer alone, without vision rows
        for page in range(known, full):
            sequence.keys.append(page_key(sequence.keys[-1], sequence.tokens(page * size, (page + 1) * size), ()))
    elif full > known:
        sequence.keys += page_keys(
            sequence.tokens(0, full * size),
            sequence.request.spans,
            sequence.item_keys,
            size,
            sequence.root,
            first_page=known,
            parent=sequence.keys[-1] if known else None,
        )


def known_prefix(schedule: Schedule, sequence: Sequence) -> list[Node]:
    """Nodes of the prefix tree that a waiting sequence can go on from. With states: up to a snapshot before its last token."""
    extend_keys(sequence)
    if schedule.states is None:
        return schedule.pages.match(sequence.keys)
    most = (len(sequence) - 1) // sequence.page_size
    return schedule.pages.match(sequence.keys[:most], need_state=True)


def known_beginning(schedule: Schedule, sequence: Sequence, nodes: Seq[Node]) -> Beginning | None:
    """What is known of the page after `nodes`, if it can spare a waiting sequence a token: the last one is computed anyway."""
    start = len(nodes) * sequence.page_size
    most = min(sequence.known - start, sequence.page_size - 1)
    if schedule.states is not None or most < _WORTH_KEEPING:
        return None
    before = nodes[-1].key if nodes else sequence.root
    return schedule.pages.beginnings.longest(before, most, lambda count: _beginning_key(sequence, before, start, count))


def cached_tokens(schedule: Schedule, sequence: Sequence) -> int:
    """How many tokens of a waiting sequence need not be computed: those in the prefix tree, but for the last of all, whose
    logits are needed."""
    nodes = known_prefix(schedule, sequence)
    beginning = known_beginning(schedule, sequence, nodes)
    return min(len(nodes) * sequence.page_size + (beginning.count if beginning else 0), len(sequence) - 1)


def note_end_of_prompt(schedule: Schedule, sequence: Sequence, node: Node) -> None:
    """The node is the sequence's page in which its prompt ends and its answer begins: both together are its key, the prompt's
    end is a beginning of it."""
    start = node.depth * sequence.page_size
    count = sequence.prompt_tokens - start
    if schedule.states is None and _WORTH_KEEPING <= count < sequence.page_size:
        before = sequence.keys[node.depth - 1] if node.depth else sequence.root
        schedule.pages.beginnings.add(node, before, _beginning_key(sequence, before, start, count), count)


def keep_unfinished_page(schedule: Schedule, sequence: Sequence) -> bool:
    """A sequence that gives its pages up leaves the one that it was filling to the tree, if there is something in it. True if
    it did: the page is no longer its own. Nothing is in it while it is yet to be copied."""
    start = len(sequence.nodes) * sequence.page_size
    filled = min(sequence.computed, sequence.known) - start
    if schedule.states is not None or sequence.copies is not None or not _WORTH_KEEPING <= filled < sequence.page_size:
        return False
    parent = sequence.nodes[-1] if sequence.nodes else None
    before = sequence.root if parent is None else parent.key
    prompt = sequence.prompt_tokens - start
    counts = (prompt, filled) if _WORTH_KEEPING <= prompt < filled else (filled,)
    beginnings = [(_beginning_key(sequence, before, start, count), count) for count in counts]
    schedule.pages.insert_partial(parent, before, beginnings, int(sequence.page_table[len(sequence.nodes)]))
    return True


def _beginning_key(sequence: Sequence, before: bytes, start: int, count: int) -> bytes:
    """The key of `count` tokens from `start` on, behind the page with the key `before`."""
    end = start + count
    runs: list[VisionRun] = []
    for number in sequence.spans_meeting(start, end):
        span = sequence.request.spans[number]
        first, last = max(span.start, start), min(span.start + span.count, end)
        if first < last:
            runs.append((first - start, sequence.item_keys[span.item], span.row + first - span.start, last - first))
    return page_key(before, sequence.tokens(start, end), runs)
