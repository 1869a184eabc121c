"""Which of several engines a request goes to: the one that most likely has its images and its beginning already.

Rendezvous hashing: a key and each engine's name give a score, and the engine with the highest one owns the key. An engine
that comes or goes moves its own keys alone. An owner that is too far behind the others is passed over for the next.

The engines of a server have their numbers as names; replicas of Ray Serve (sightline/ray/router.py) those that Ray gives them.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from sightline.submission import Submission

# How far above the others' average an engine's unfinished answers may be before others get its share.
_FACTOR, _SLACK = 1.25, 2


def affinity_key(prompts: Sequence[Submission]) -> bytes:
    """Of who shares an image or a beginning: the first image, else what the endpoint says of the beginning, else the whole
    prompt; always of one tenant."""
    first = prompts[0]
    items = first.request.items
    if items:
        shared = b"media" + items[0].ref.digest
    elif first.affinity:
        shared = b"turn" + first.affinity
    else:
        shared = b"ids" + hashlib.sha256(first.request.token_ids.tobytes()).digest()
    return hashlib.sha256(first.cache_salt.encode() + b"\0" + shared).digest()


@dataclass(frozen=True)
class Choice:
    engine: int
    spilled: bool  # another one owns the key


def choose(key: bytes, loads: Sequence[int | None], names: Sequence[bytes] | None = None) -> Choice:
    """`loads`: unfinished answers of each engine; None: it cannot be asked. At least one can."""
    there = [load for load in loads if load is not None]
    most = _FACTOR * (sum(there) + 1) / len(there) + _SLACK
    order = [number for number in rendezvous_order(key, names or engine_names(len(loads))) if loads[number] is not None]
    chosen = next((number for number in order if (loads[number] or 0) < most), order[0])
    return Choice(chosen, spilled=chosen != order[0])


def rendezvous_order(key: bytes, names: Sequence[bytes]) -> list[int]:
    """Places of all engines, the owner of the key first. A name has at most 64 bytes."""
    scores = [hashlib.blake2b(key, digest_size=8, key=name).digest() for name in names]
    return sorted(range(len(names)), key=scores.__getitem__, reverse=True)


def engine_names(engines: int) -> list[bytes]:
    return [number.to_bytes(4) for number in range(engines)]
