"""Encoded files that an engine process keeps, so that the images of a conversation are not sent to it with every round.

Nobody asks and nobody answers: both processes keep the same index. What the API process sends, the engine receives in the same
order, so each knows at every message which files the engine has: those used last, within a bound.
"""

from collections import OrderedDict

_LARGEST_SHARE = 4  # a file larger than this part of the bound is not kept: it would drive out all others


class FileCacheIndex:
    """Which files are kept, by digest. Equal for both ends if both tell it of the same files in the same order."""

    def __init__(self, most_bytes: int) -> None:
        self._most = most_bytes
        self._sizes: OrderedDict[bytes, int] = OrderedDict()
        self._bytes = 0

    def use(self, digest: bytes, size: int) -> tuple[bool, list[bytes]]:
        """(whether it was kept already, which files no longer are). It is kept afterwards, unless it is too large."""
        if digest in self._sizes:
            self._sizes.move_to_end(digest)
            return True, []
        if not 0 < size <= self._most // _LARGEST_SHARE:
            return False, []
        self._sizes[digest] = size
        self._bytes += size
        dropped = []
        while self._bytes > self._most:
            oldest, freed = self._sizes.popitem(last=False)
            self._bytes -= freed
            dropped.append(oldest)
        return False, dropped

    def clear(self) -> None:
        self._sizes.clear()
        self._bytes = 0

    def __contains__(self, digest: bytes) -> bool:
        return digest in self._sizes


class FileCache:
    """The engine's end: the index and the files."""

    def __init__(self, most_bytes: int) -> None:
        self._index = FileCacheIndex(most_bytes)
        self._files: dict[bytes, bytes] = {}

    def take(self, digest: bytes, data: bytes) -> bytes:
        """A file that was sent, or only named, without its bytes: then what there is of it, and the index is not told."""
        if not data:
            return self._files.get(digest, data)
        _, dropped = self._index.use(digest, len(data))
        if digest in self._index:
            self._files[digest] = data
        for each in dropped:
            del self._files[each]
        return data

    def recall(self, digest: bytes) -> bytes:
        """A file that was not sent, because it is here."""
        data = self._files[digest]
        self._index.use(digest, len(data))
        return data

    def clear(self) -> None:
        self._index.clear()
        self._files.clear()
