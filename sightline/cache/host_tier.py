"""Which images have their embedding rows in host memory: the second tier under the arena on the device.

The storage that holds the tensors follows along: a key comes in with an Offload and goes with `take_dropped`. A key that comes
back before the storage has heard that it went is neither reported nor copied again.
"""

from collections import OrderedDict
from collections.abc import Sequence


class HostTier:
    """Keys and sizes of what is in host memory, within a budget of bytes, longest unused dropped first.

    A key that is being copied back to the device is held and is not dropped until it is released.
    """

    def __init__(self, bytes_limit: int) -> None:
        self.bytes_limit = bytes_limit
        self.bytes_used = 0
        self._sizes: dict[bytes, int] = {}
        self._idle: OrderedDict[bytes, None] = OrderedDict()  # keys that are not held, longest unused first
        self._held_bytes = 0
        self._dropped: dict[bytes, None] = {}  # the storage has not been told yet

    def __contains__(self, key: bytes) -> bool:
        return key in self._sizes

    def hold(self, key: bytes) -> None:
        del self._idle[key]
        self._held_bytes += self._sizes[key]

    def release(self, key: bytes) -> None:
        """Also marks it as just used."""
        assert key in self._sizes and key not in self._idle, f"{key.hex()} is not held in the host tier"
        self._held_bytes -= self._sizes[key]
        self._idle[key] = None

    def admit(self, leaving: Sequence[tuple[bytes, int]]) -> set[bytes]:
        """(key, bytes) of entries that leave the device, longest unused first; returns the keys whose rows must be copied here.

        One that is here already is marked as just used. One that does not fit beside what is held is not taken.
        """
        copies: set[bytes] = set()
        for key, nbytes in leaving:
            if key in self._sizes:
                self._idle.move_to_end(key)
            elif self._held_bytes + nbytes <= self.bytes_limit:
                while self.bytes_used + nbytes > self.bytes_limit:
                    oldest = next(iter(self._idle))
                    self.drop(oldest)
                    if oldest in copies:  # admitted a moment ago: the storage never had it
                        copies.remove(oldest)
                        del self._dropped[oldest]
                self._sizes[key] = nbytes
                self._idle[key] = None
                self.bytes_used += nbytes
                if key in self._dropped:
                    del self._dropped[key]  # the storage has it still
                else:
                    copies.add(key)
        return copies

    def drop(self, key: bytes) -> None:
        """Forget a key that is not held."""
        del self._idle[key]
        self.bytes_used -= self._sizes.pop(key)
        self._dropped[key] = None

    def clear(self) -> None:
        """Forget all that is not held."""
        while self._idle:
            self.drop(next(iter(self._idle)))

    def take_dropped(self) -> list[bytes]:
        """Keys that left since the last call: their tensors can go."""
        dropped = list(self._dropped)
        self._dropped.clear()
        return dropped

    def check_integrity(self, held: set[bytes]) -> None:
        """`held` are the keys being copied back to the device."""
        assert set(self._sizes) == held | set(self._idle), "a key of the host tier is neither held nor in the queue of eviction"
        assert not held & set(self._idle), "a held key of the host tier is in the queue of eviction"
        assert not set(self._sizes) & set(self._dropped), "a key of the host tier is also reported as dropped"
        total, held_bytes = sum(self._sizes.values()), sum(self._sizes[key] for key in held)
        assert self.bytes_used == total, f"the host tier has {total} bytes, {self.bytes_used} are counted"
        assert self._held_bytes == held_bytes, f"{held_bytes} bytes of the host tier are held, {self._held_bytes} are counted"
        assert total <= self.bytes_limit, f"the host tier has {total} bytes, {self.bytes_limit} are allowed"
