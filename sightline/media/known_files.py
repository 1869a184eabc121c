"""Files that came before, found by comparing: whoever re-sends a conversation sends the same bytes again and again.

A digest goes over a megabyte in half a millisecond, a comparison with the bytes that were kept in a twentieth. What is looked
up by is cheap and need not be unique: only bytes that are equal are found, whatever somebody makes of the rest.
"""

import threading
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass

from sightline.media.limits import Kind
from sightline.types import ImageHeader, VideoHeader

_LARGEST_SHARE = 4  # a file larger than this part of the bound is not kept: it would drive out all others


@dataclass(frozen=True)
class KnownFile:
    data: bytes
    digest: bytes
    header: ImageHeader | VideoHeader


class KnownFiles:
    """Those used last, within a bound. Fit for threads. A tenant finds what it has sent itself, and nobody else's."""

    def __init__(self, most_bytes: int) -> None:
        self._most = most_bytes
        self._files: OrderedDict[Hashable, KnownFile] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def of(self, tenant: str) -> "TenantFiles":
        return TenantFiles(self, tenant)

    def find(self, tenant: str, kind: Kind, data: bytes) -> KnownFile | None:
        key = _key(tenant, kind, data)
        with self._lock:
            found = self._files.get(key)
            if found is not None:
                self._files.move_to_end(key)
        return found if found is not None and found.data == data else None

    def keep(self, tenant: str, kind: Kind, file: KnownFile) -> None:
        if not 0 < len(file.data) <= self._most // _LARGEST_SHARE:
            return
        key = _key(tenant, kind, file.data)
        with self._lock:
            before = self._files.pop(key, None)
            self._bytes += len(file.data) - (len(before.data) if before is not None else 0)
            self._files[key] = file
            while self._bytes > self._most:
                _, oldest = self._files.popitem(last=False)
                self._bytes -= len(oldest.data)

    def clear(self) -> None:
        with self._lock:
            self._files.clear()
            self._bytes = 0

    def check_integrity(self) -> None:
        with self._lock:
            assert self._bytes == sum(len(file.data) for file in self._files.values()) <= self._most


@dataclass(frozen=True)
class TenantFiles:
    files: KnownFiles
    tenant: str

    def find(self, kind: Kind, data: bytes) -> KnownFile | None:
        return self.files.find(self.tenant, kind, data)

    def keep(self, kind: Kind, file: KnownFile) -> None:
        self.files.keep(self.tenant, kind, file)


def _key(tenant: str, kind: Kind, data: bytes) -> Hashable:
    """Files of one kind begin alike, and screenshots are alike in most places, but not in the checksums at their end."""
    middle = len(data) // 2
    return tenant, kind, len(data), data[middle : middle + 32], data[-48:]
