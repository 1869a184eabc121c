"""Which of several engines a request goes to: the one that most likely has its images and its beginning already.

Rendezvous hashing: a key and each engine's name give a score, and the engine with the highest one owns the key. An engine
that comes or goes moves its own keys alone. An owner that is too far behind the others is passed over for the next.

The engines of a server have their numbers as names; replicas of Ray Serve (sightline/ray/router.py) those that Ray gives them.
"""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass

from sightline.submission import Submission

# How far above the others' average an engine's unfinished requests may be before others get its share. While nobody has to wait
# in it: half as many again, or as far as chance alone brings it (standard deviations of a Poisson distribution), and two more.
_FACTOR, _DEVIATIONS, _SLACK = 1.5, 3, 2
# Where all have to wait they wait in proportion, so little more than the average.
_FULL_FACTOR, _FULL_SLACK = 1.1, 1


def affinity_key(prompts: Sequence[Submission]) -> bytes:
    """Of who shares an image or a beginning: the first image, else what the endpoint says of the beginning, else the whole
    prompt; always of one tenant."""
    first = prompts[0]
    items = first.request.items
    if items:
        return media_key(first.cache_salt, items[0].ref.digest)
    if first.affinity:
        return _key(first.cache_salt, b"turn" + first.affinity)
    return _key(first.cache_salt, b"ids" + hashlib.sha256(first.request.token_ids.tobytes()).digest())


def media_key(tenant: str, digest: bytes) -> bytes:
    """Of who shows an image or a video first."""
    return _key(tenant, b"media" + digest)


def _key(tenant: str, shared: bytes) -> bytes:
    return hashlib.sha256(tenant.encode() + b"\0" + shared).digest()


@dataclass(frozen=True)
class Choice:
    engine: int
    spilled: bool  # another one owns the key


def choose(key: bytes, loads: Sequence[int | None], sequences: int, names: Sequence[bytes] | None = None) -> Choice:
    """`loads`: unfinished requests of each engine; None: it cannot be asked. At least one can. `sequences` run at once in each:
    where all of an engine's are taken its requests wait, so others go to one that has some left."""
    there = [load for load in loads if load is not None]
    average = (sum(there) + 1) / len(there)
    if min(there) < sequences:
        most = min(max(_FACTOR * average, average + _DEVIATIONS * math.sqrt(average)) + _SLACK, sequences)
    else:
        most = _FULL_FACTOR * average + _FULL_SLACK
    order = [number for number in rendezvous_order(key, names or engine_names(len(loads))) if loads[number] is not None]
    chosen = next((number for number in order if (loads[number] or 0) < most), order[0])
    return Choice(chosen, spilled=chosen != order[0])


def rendezvous_order(key: bytes, names: Sequence[bytes]) -> list[int]:
    """Places of all engines, the owner of the key first. A name has at most 64 bytes."""
    scores = [hashlib.blake2b(key, digest_size=8, key=name).digest() for name in names]
    return sorted(range(len(names)), key=scores.__getitem__, reverse=True)


def engine_names(engines: int) -> list[bytes]:
    return [number.to_bytes(4) for number in range(engines)]
