"""Whatever a library raises on a bad file, as the one error that users are told."""

from collections.abc import Callable
from types import TracebackType

from sightline.errors import HostMemoryError, MediaError
from sightline.host_memory import is_short_of

HEADER_BYTES = 1 << 22  # about as many as it takes to read a header
Cancelled = Callable[[], bool]  # asked between pieces of a decode: whether nobody wants the rest any more


class DecodeCancelled(Exception):
    """A decode ended early because its caller asked for that; it says nothing about the file."""


def never() -> bool:
    return False


def check_cancelled(cancelled: Cancelled) -> None:
    if cancelled():
        raise DecodeCancelled


def not_enough_memory(subject: str) -> HostMemoryError:
    return HostMemoryError(f"{subject} cannot be decoded now: the machine has not enough memory free.")


class DecoderErrors:
    """A block whose exceptions become MediaErrors; `sentence` makes the message.

    Written as a generator it would keep all that the block used, the file and the threads of its decoder, until the collector
    of garbage comes: the exception would lead to the generator's frame, that to its caller's, and that back to the exception.
    """

    def __init__(self, sentence: Callable[[Exception], str], subject: str, needed: int) -> None:
        """`needed` are the bytes that the block may take for what the file says it is. Decoders call it a lack of memory, too,
        when a broken file asks for more than anybody has; then these can still be had."""
        self._sentence, self._subject, self._needed = sentence, subject, needed

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if isinstance(error, MemoryError) and is_short_of(self._needed):
            raise not_enough_memory(self._subject) from None  # what it held should go as soon as possible
        if isinstance(error, Exception) and not isinstance(error, MediaError | DecodeCancelled):
            raise MediaError(self._sentence(error)) from error
