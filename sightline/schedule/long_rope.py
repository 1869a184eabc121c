"""Sequences that grow beyond the length up to which a model has rotary frequencies of their own (spec.py LongRopeSpec).

    tokens     0                 long_from
    computed   |── short ──────────|                     up to here with the frequencies of short sequences
               |── long ───────────|── long ────────►    computed anew, and on, with those of long ones

Keys in pages are never turned again: the sequence is preempted, and comes back as one that was always long, with page keys of
its own. Pages of short frequencies stay in the prefix tree, for others. This happens once in a sequence's life.
"""

from sightline.schedule.state import Sequence


def grows_long(sequence: Sequence, long_from: int) -> bool:
    """Whether a token is to be computed behind the first `long_from`."""
    return sequence.long_root is not None and len(sequence) > long_from and not sequence.has_its_last


def become_long(sequence: Sequence, long_from: int) -> None:
    """Of a sequence that has nothing computed. Positions of long sequences begin at `long_from` in the rotary tables."""
    assert sequence.long_root is not None and not sequence.computed and not sequence.pages
    sequence.request = sequence.request.moved(long_from)
    sequence.root, sequence.long_root, sequence.keys = sequence.long_root, None, []
