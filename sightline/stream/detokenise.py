"""Token ids to text as they come, such that what was given out never changes.

Decoding is not a map over tokens: a character may be spread over several, and a token may begin with a space that only shows
after another. So a small window is decoded as a whole, and what is new is what lies behind the text that was given out before:

```
tokens    …gone… │ anchor: given out already │ fresh │      decode(anchor + fresh) = anchor's text + new text
```

The anchor is the previous fresh part: it has text (else a leading space would be lost) and begins and ends between characters.
Bytes that may be the beginning of a character decode to U+FFFD at the end of the text; they stay in the fresh part.

Exact for decoders that join the bytes of their tokens (byte-level BPE). A byte-fallback decoder shows a whole run of byte
tokens as broken while it is not valid, good characters at its beginning included. That is exact, too, when the run becomes
valid in the end; when it does not, the decoder takes back good characters, which no stream can.
"""

import codecs
import re
from collections.abc import Sequence

from sightline.errors import CheckpointError
from sightline.prompt.tokenizer import Tokenizer
from sightline.stream.stop_strings import StopStrings

_BROKEN = "\ufffd"
# All U+FFFD at the end are held back, unless they are so many that they must be broken for good: then only 3 are, the most that
# an unfinished character can show.
_MOST_BROKEN, _UNFINISHED = 24, 3
_BYTE_TOKEN = re.compile("<0x([0-9A-F]{2})>")
_KEEP_BROKEN = 12  # tokens that stay in the window then: they decode to 3 characters or more


class IncrementalText:
    """The text of one answer: deltas from `push` and `finish` join to the decoded answer, cut before the first stop string."""

    def __init__(
        self, tokenizer: Tokenizer, stop: Sequence[str] = (), skip_special_tokens: bool = True, min_tokens: int = 0
    ) -> None:
        """Stop strings that are complete before `min_tokens` tokens are ordinary text."""
        self._tokenizer = tokenizer
        self._skip_special = skip_special_tokens
        self._min_tokens = min_tokens
        self._stops = StopStrings(stop)
        self._count = 0  # tokens pushed
        self._window: list[int] = []  # anchor, then fresh
        self._fresh = 0  # where the fresh part begins
        self._text = ""  # of the window
        self._given = 0  # characters of it that went on to the stop strings

    @property
    def stopped(self) -> bool:
        """Whether a stop string is complete. Nothing is given out after that."""
        return self._stops.stopped

    @property
    def matched_stop(self) -> str | None:
        """The stop string that is complete; of several, the one that begins first."""
        return self._stops.matched

    def push(self, token_ids: Sequence[int]) -> str:
        """The text that is final with these tokens and was not before."""
        ids = list(token_ids)
        unarmed = max(0, self._min_tokens - 1 - self._count)  # of these ids
        if 0 < unarmed < len(ids):
            return self.push(ids[:unarmed]) + self.push(ids[unarmed:])
        self._count += len(ids)
        if self.stopped or not ids:
            return ""
        return self._stops.feed(self._advance(ids), armed=self._count >= self._min_tokens)

    def finish(self) -> str:
        """The text that was held back, once no token follows: an unfinished character, the beginning of a stop string."""
        rest, self._given = self._text[self._given :], len(self._text)
        given = self._stops.feed(rest, armed=self._count >= self._min_tokens)
        return given + self._stops.finish()

    def _decode(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=self._skip_special)

    def _advance(self, ids: list[int]) -> str:
        """New final text of the decoder, stop strings aside."""
        text = self._decode(self._window + ids)
        if text == self._text:  # tokens without text, or bytes of an unfinished character
            ids = [token for token in ids if not self._is_silent(token)]
        self._window += ids
        self._text = text
        broken = len(text) - len(text.rstrip(_BROKEN))
        for_good = broken > _MOST_BROKEN and not self._ends_in_byte_tokens()
        final = len(text) - (_UNFINISHED if for_good else broken)
        new, self._given = text[self._given : final], max(self._given, final)
        if not broken:
            self._drop_anchor()
        elif for_good:
            self._cut_broken()
        return new

    def _ends_in_byte_tokens(self) -> bool:
        """Whether the broken end is a run of byte tokens that may still become valid: characters, and the beginning of one.

        A byte-fallback decoder shows all of such a run as broken until its last character is whole.
        """
        run = bytearray()
        for token in reversed(self._window):
            value = self._byte_of(token)
            if value is None:
                break
            run.append(value)
        run.reverse()
        try:
            codecs.getincrementaldecoder("utf-8")().decode(bytes(run))
        except UnicodeDecodeError:
            return False
        return bool(run)

    def _byte_of(self, token: int) -> int | None:
        """The byte that a token of a byte-fallback vocabulary stands for."""
        try:
            found = _BYTE_TOKEN.fullmatch(self._tokenizer.token_of(token))
        except CheckpointError:
            return None
        return int(found[1], 16) if found is not None else None

    def _drop_anchor(self) -> None:
        """Everything is given out and ends between characters: the fresh part becomes the anchor."""
        text = self._decode(self._window[self._fresh :])
        if text:
            self._window, self._text, self._given = self._window[self._fresh :], text, len(text)
            self._fresh = len(self._window)

    def _cut_broken(self) -> None:
        """Drops the beginning of a window that goes on ending in broken bytes, at a place between characters.

        Such a place is where the parts decode to the whole. Inside a character, or inside bytes that a decoder reports as one
        broken character, they decode to more: the bytes behind the cut become broken characters of their own. One of four
        neighbouring places lies between characters.
        """
        for index in range(len(self._window) - _KEEP_BROKEN, len(self._window) - _KEEP_BROKEN - 4, -1):
            before, after = self._decode(self._window[:index]), self._decode(self._window[index:])
            if len(before) <= self._given and before + after == self._text:
                self._window, self._text, self._fresh = self._window[index:], after, 0
                self._given -= len(before)
                return

    def _is_silent(self, token: int) -> bool:
        """Whether a token has no text anywhere: a special token that is skipped, or an id that the tokenizer does not know."""
        try:
            self._tokenizer.token_of(token)
        except CheckpointError:  # models have more ids than their tokenizers
            return True
        return self._skip_special and not self._tokenizer.decode([token]) and bool(self._tokenizer.decode([token], False))
