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
    width = -(-(max(matchers[0].end + 1, columns)) // 32)
    words = np.zeros((len(matchers), width), np.int32)
    _fill(matchers, words)
    end = matchers[0].end
    may_end = (words[:, end >> 5] >> (end & 31)) & 1
    _clear_from(words, min(end, columns))
    for row, matcher in enumerate(matchers):
        matcher.may_end = bool(may_end[row])
        if matcher.may_end:
            _set_bits(words[row], [token for token in matcher.end_tokens if token < columns])
        if len(banned[row]):
            _clear_unless_last(words[row], banned[row])
    for row in np.flatnonzero(~words.any(axis=1)).tolist():
        matcher = matchers[row]
        reason = matcher.state.get_error().split("\n")[0] if matcher.state.is_error() else ""
        matcher.error = reason or "no token can follow"
        words[row] = -1
    return np.ascontiguousarray(words[:, : -(-columns // 32)])


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


def _fill(matchers: Sequence[Matcher], words: NDArray[np.int32]) -> None:
    """The library's masks; a state with an error leaves its row 0."""
    good = [(matcher.state, row) for row, matcher in enumerate(matchers) if not matcher.state.is_error()]
    if good:
        fill_next_token_bitmask_par(_executor(), good, words)
    for state, row in good:
        if state.is_error():
            words[row] = 0


def _clear_from(words: NDArray[np.int32], first: int) -> None:
    """Clears the bits of `first` and all after it."""
    words[:, (first >> 5) + 1 :] = 0
    if first >> 5 < words.shape[1]:
        words[:, first >> 5] &= np.int32((1 << (first & 31)) - 1)


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
