"""Cuts a stream of text before the first stop string, holding back only what may still become one."""

from collections.abc import Sequence

from sightline.errors import PromptError


class StopStrings:
    """One Knuth-Morris-Pratt automaton per stop string, so that a character costs the same however long text and stops are.

    ```
    text so far   … given out … │ held │       held: the longest end of the text that begins a stop string
    ```
    """

    def __init__(self, stops: Sequence[str]) -> None:
        if "" in stops:
            raise PromptError("stop contains an empty string, but a stop string must have at least one character.")
        self.matched: str | None = None  # the stop string that the text was cut before
        self._matches = [_Match(stop) for stop in stops]
        self._held = ""

    @property
    def stopped(self) -> bool:
        return self.matched is not None

    def feed(self, text: str, armed: bool = True) -> str:
        """What can be given out now that `text` has come. Stop strings completed while not `armed` are ordinary text."""
        if not self._matches or self.stopped:
            return "" if self.stopped else text
        text = self._held + text
        cut = len(text)
        for match in self._matches:
            for end, char in enumerate(text[len(self._held) :], len(self._held) + 1):
                if match.step(char) and armed:
                    if self.matched is None or end - len(match.stop) < cut:
                        cut, self.matched = end - len(match.stop), match.stop
                    break  # its later occurrences start later
        hold = 0 if self.stopped else max(match.length for match in self._matches)
        given, self._held = text[: min(cut, len(text) - hold)], text[len(text) - hold :]
        return given

    def finish(self) -> str:
        """What was held back for a stop string that did not come."""
        held, self._held = self._held, ""
        return held


class _Match:
    """How much of the beginning of one stop string the text ends with."""

    def __init__(self, stop: str) -> None:
        self.stop = stop
        self.length = 0  # characters, below len(stop) after each step
        # shorter[k]: the longest proper beginning of stop[:k] that stop[:k] also ends with
        self._shorter = [0, 0]
        length = 0
        for char in stop[1:]:
            length = self._extend(length, char)
            self._shorter.append(length)

    def step(self, char: str) -> bool:
        """Whether the stop string is complete with this character."""
        self.length = self._extend(self.length, char)
        if self.length < len(self.stop):
            return False
        self.length = self._shorter[self.length]
        return True

    def _extend(self, length: int, char: str) -> int:
        while length and self.stop[length] != char:
            length = self._shorter[length]
        return length + 1 if self.stop[length] == char else 0
