"""Reads one JSON object as it comes, piece by piece, and says where it ends, or that it is not one."""

import json
import re

_SPACE = " \t\n\r"
_PLAIN = re.compile(r'[^"\\\x00-\x1f]*')  # of a string: what needs no looking at
_ATOM_CHARACTER = re.compile(r"[-+.0-9a-zA-Z]*")
_ATOM = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?|true|false|null")
_HEX = "0123456789abcdefABCDEF"


class JsonObjectScanner:
    """A stack of open brackets and what may come next. Nothing is looked at twice, whatever the pieces are.

    Strict as the standard, because one that reads leniently would take in what follows a broken object; and two members of the
    object itself with the same name are a fault.
    """

    def __init__(self, start: int) -> None:
        """The object begins at `start` of the text that `scan` will be given."""
        self.at = start  # everything before is read
        self.done = False
        self.failed = False
        self.members: dict[str, tuple[int, int]] = {}  # where the values of the object's own members stand in the text
        self.open_member: tuple[str, int] | None = None  # one whose value is not complete: its name, where the value begins
        self._stack: list[str] = []
        self._next = "object"  # object, key or }, key, :, value or ], value, comma, string, escape, hex, atom
        self._string_is_key = False
        self._began = start  # of the string or atom being read
        self._hex_left = 0
        self._key = ""

    def scan(self, text: str) -> None:
        """Goes on to the end of the text, which is what it was before and more; or to the end of the object, or to a fault."""
        while self.at < len(text) and not (self.done or self.failed):
            if self._next in ("string", "escape", "hex"):
                self._string(text)
            elif self._next == "atom":
                self._atom(text)
            elif text[self.at] in _SPACE and self._next != "object":
                self.at += 1
            else:
                self._structure(text[self.at])

    def _structure(self, char: str) -> None:
        """A character outside strings and atoms."""
        wanted = self._next
        if char == "{" and wanted in ("object", "value", "value or ]"):
            self._begin_value()
            self._push("{", "key or }")
        elif char == "[" and wanted in ("value", "value or ]"):
            self._begin_value()
            self._push("[", "value or ]")
        elif char == '"' and wanted in ("key", "key or }", "value", "value or ]"):
            self._string_is_key = wanted.startswith("key")
            if not self._string_is_key:
                self._begin_value()
            self._began, self._next = self.at, "string"
            self.at += 1
        elif char == ":" and wanted == ":":
            self._next = "value"
            self.at += 1
        elif char == "," and wanted == "comma":
            self._next = "key" if self._stack[-1] == "{" else "value"
            self.at += 1
        elif (char == "}" and wanted in ("key or }", "comma") and self._stack[-1] == "{") or (
            char == "]" and wanted in ("value or ]", "comma") and self._stack[-1] == "["
        ):
            self._stack.pop()
            self.at += 1
            self._end_value()
        elif wanted in ("value", "value or ]") and _ATOM_CHARACTER.match(char).end():  # type: ignore[union-attr]
            self._begin_value()
            self._began, self._next = self.at, "atom"
        else:
            self.failed = True

    def _push(self, bracket: str, then: str) -> None:
        self._stack.append(bracket)
        self._next = then
        self.at += 1

    def _string(self, text: str) -> None:
        char = text[self.at]
        if self._next == "escape":
            if char == "u":
                self._next, self._hex_left = "hex", 4
            elif char in '"\\/bfnrt':
                self._next = "string"
            else:
                self.failed = True
            self.at += 1
        elif self._next == "hex":
            self.failed = char not in _HEX
            self._hex_left -= 1
            self._next = "hex" if self._hex_left else "string"
            self.at += 1
        elif char == "\\":
            self._next = "escape"
            self.at += 1
        elif char == '"':
            self.at += 1
            self._end_string(text)
        elif char < " ":
            self.failed = True
        else:
            self.at = _PLAIN.match(text, self.at).end()  # type: ignore[union-attr]

    def _end_string(self, text: str) -> None:
        if self._string_is_key:
            self._next = ":"
            if len(self._stack) == 1:
                self._key = json.loads(text[self._began : self.at])
                self.failed = self._key in self.members  # which of them counts is anybody's guess
        else:
            self._end_value()

    def _atom(self, text: str) -> None:
        self.at = _ATOM_CHARACTER.match(text, self.at).end()  # type: ignore[union-attr]
        if self.at < len(text):
            if _ATOM.fullmatch(text, self._began, self.at):
                self._end_value()
            else:
                self.failed = True

    def _begin_value(self) -> None:
        if len(self._stack) == 1:
            self.open_member = (self._key, self.at)

    def _end_value(self) -> None:
        self._next = "comma"
        if not self._stack:
            self.done = True
        elif len(self._stack) == 1 and self.open_member is not None:
            name, start = self.open_member
            self.members[name] = (start, self.at)
            self.open_member = None
