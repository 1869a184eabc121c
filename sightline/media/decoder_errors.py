"""Whatever a library raises on a bad file, as the one error that users are told."""

from collections.abc import Callable
from types import TracebackType

from sightline.errors import MediaError


class DecoderErrors:
    """A block whose exceptions become MediaErrors; `sentence` makes the message.

    Written as a generator it would keep all that the block used, the file and the threads of its decoder, until the collector
    of garbage comes: the exception would lead to the generator's frame, that to its caller's, and that back to the exception.
    """

    def __init__(self, sentence: Callable[[Exception], str]) -> None:
        self._sentence = sentence

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if isinstance(error, Exception) and not isinstance(error, MediaError):
            raise MediaError(self._sentence(error)) from error
