"""Where an answer stands in its grammar, and the tokens that may come next, for many answers at once."""

import functools
from collections.abc import Sequence

import llguidance
import numpy as np
from llguidance.numpy import fill_next_token_bitmask_par
from numpy.typing import NDArray


class Matcher:
    """One answer's state. `advance` takes each of its tokens in turn, end tokens aside."""

    def __init__(self, state: llguidance.LLMatcher, end: int, end_tokens: frozenset[int]) -> None:
        self.state = state
        self.end = end  # the id that stands for the end in the library's masks
        self.end_tokens = end_tokens  # the request's: allowed where the grammar may end
        self.may_end = False  # as of the last mask
        self.error: str | None = None  # why no token can come

    def advance(self, token: int) -> None:
        """A token that was not allowed is an error, which shows in the next mask."""
        self.state.consume_token(token)

    @property
    def complete(self) -> bool:
        """Whether the form is complete and nothing can follow."""
        return self.state.is_stopped() and not self.state.is_error()


def allowed_tokens(matchers: Sequence[Matcher], banned: Sequence[Sequence[int]], columns: int) -> NDArray[np.int32]:
    """Words [n, ceil(columns / 32)]: bit b of word w of a row says whether token 32 * w + b may come.

    `banned` are tokens that a row should not take, as long as there are others: a form that is complete ends, whatever
    min_tokens says. A row that nothing is allowed to has its `error` set and every bit.
    """
    end = matchers[0].end
    words = _library_masks(matchers, end + 1)
    may_end = (words[:, end >> 5] >> (end & 31)) & 1
    words = _resized(words, min(end, columns), columns)
    for row, matcher in enumerate(matchers):
        matcher.may_end = bool(may_end[row])
        if matcher.may_end:
            _set_bits(words[row], [token for token in matcher.end_tokens if 0 <= token < columns])
        if len(banned[row]):
            _clear_unless_last(words[row], [token for token in banned[row] if 0 <= token < columns])
    for row in np.flatnonzero(~words.any(axis=1)).tolist():
        matcher = matchers[row]
        reason = matcher.state.get_error().split("\n")[0] if matcher.state.is_error() else ""
        matcher.error = reason or "no token can follow"
        words[row] = -1
    return words


def allowed_ids(matcher: Matcher, columns: int) -> NDArray[np.int64]:
    """The tokens that may come, as a list of ids; none if only the end may, or if there is an error."""
    words = allowed_tokens([matcher], [()], columns)
    if matcher.error is not None:
        if matcher.may_end:
            matcher.error = None
        return np.empty(0, np.int64)
    return np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little")[:columns])


@functools.lru_cache(maxsize=1)
def _executor() -> llguidance.LLExecutor:
    return llguidance.LLExecutor()


def _library_masks(matchers: Sequence[Matcher], size: int) -> NDArray[np.int32]:
    """Words [n, ceil(size / 32)], the width that the library wants; a state with an error has a row of 0."""
    words = np.zeros((len(matchers), -(-size // 32)), np.int32)
    good = [(matcher.state, row) for row, matcher in enumerate(matchers) if not matcher.state.is_error()]
    if good:
        fill_next_token_bitmask_par(_executor(), good, words)
    for state, row in good:
        if state.is_error():
            words[row] = 0
    return words


def _resized(words: NDArray[np.int32], kept: int, columns: int) -> NDArray[np.int32]:
    """The first `kept` bits of each row, in rows that are wide enough for `columns`; the other bits are 0."""
    width = -(-columns // 32)
    if words.shape[1] != width:
        room = np.zeros((words.shape[0], width), np.int32)
        room[:, : words.shape[1]] = words[:, :width]
        words = room
    words[:, (kept >> 5) + 1 :] = 0
    if kept >> 5 < width:
        words[:, kept >> 5] &= np.int32((1 << (kept & 31)) - 1)
    return words


def _set_bits(row: NDArray[np.int32], tokens: Sequence[int]) -> None:
    unsigned = row.view(np.uint32)
    for token in tokens:
        unsigned[token >> 5] |= np.uint32(1 << (token & 31))


def _clear_unless_last(row: NDArray[np.int32], tokens: Sequence[int]) -> None:
    before = row.copy()
    unsigned = row.view(np.uint32)
    for token in tokens:
        unsigned[token >> 5] &= np.uint32(~(1 << (token & 31)) & 0xFFFFFFFF)
    if not row.any():
        row[:] = before
