"""How MMMU reads an answer: which option is meant, or which words and numbers are given.

The rules are those of the benchmark's own code, with two differences. A letter with a dot ("B. Paris") counts, as in the code
of its successor MMMU-Pro; and a guess depends on the question alone, so that the order of answers does not matter.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from random import Random

from sightline.evals.task import Verdict

_ENDS = ",.!?;:'"  # taken off both ends of an answer, each once, in this order
_FORMS = ("({})", " {} ", " {}.")  # of a letter, best first
_LONG = 5  # words; only longer answers are searched for the text of an option
GUESSED = "named no option, and one was taken at random"

# What announces the answer to an open question. A sign of equality does so in the last line only.
_ANNOUNCERS = ("could be ", "so ", "is ", "thus ", "therefore ", "final ", "answer ", "result ")
_NOTHING = frozenset(":,.!?;'")

_GROUPED = re.compile(r"-?\b\d{1,3}(?:,\d{3})+\b")  # 1,234,567
_SCIENTIFIC = re.compile(r"-?\d+(?:\.\d+)?[eE][+-]?\d+")  # 1.5e-3
_PLAIN = re.compile(r"-?(?:\d+\.\d+|\.\d+|\d+\b)(?![eE][+-]?\d+)(?![,\d])")  # 12, 0.5, .5


def judge_choice(answer: str, options: Mapping[str, str], right: str, chance: Callable[[], Random]) -> Verdict:
    letter = read_choice(answer, options)
    note = "" if letter is not None else GUESSED
    chosen = letter or chance().choice(list(options))
    return Verdict(float(chosen == right), chosen, note)


def read_choice(answer: str, options: Mapping[str, str]) -> str | None:
    """The letter that an answer names last, in the best form it uses; else the option whose text it has last; else None."""
    text = answer.strip()
    for character in _ENDS:
        text = text.strip(character)
    text = f" {text} "
    for form in _FORMS:
        if named := _last({letter: text.rfind(form.format(letter)) for letter in options}):
            return named
    if len(text.split()) <= _LONG:
        return None
    lower = text.lower()
    return _last({letter: lower.rfind(option.lower()) for letter, option in options.items()})


def _last(indices: Mapping[str, int]) -> str | None:
    """Whose place is the last; of several, the first one. -1 means nowhere."""
    letter = max(indices, key=lambda name: indices[name])
    return letter if indices[letter] >= 0 else None


def judge_open(answer: str, right: Sequence[str]) -> Verdict:
    """Right if a number is among those given, rounded to two digits, or a text lies within what is given."""
    given = read_open(answer)
    wanted = [value for one in right for value in _normal(one)]
    found = any(
        any(isinstance(value, str) and value in one for value in wanted) if isinstance(one, str) else one in wanted
        for one in given
    )
    return Verdict(float(found), " | ".join(str(one) for one in given))


def read_open(answer: str) -> list[str | float]:
    """What an answer gives: the ends of its lines after words that announce it, else all of it, and the numbers in there."""
    whole = answer.strip().strip(".").lower()
    lines = whole.split("\n")
    ends = []
    for number, line in enumerate(lines):
        end = _announced(line, (*_ANNOUNCERS, "=") if number == len(lines) - 1 else _ANNOUNCERS)
        if end and end not in _NOTHING:
            ends.append(end)
    texts = ends or [whole]
    numbers = [found for text in texts for pattern in (_GROUPED, _SCIENTIFIC, _PLAIN) for found in pattern.findall(text)]
    return list(dict.fromkeys(value for text in (*texts, *numbers) for value in _normal(text)))


def _announced(line: str, announcers: Sequence[str]) -> str:
    """The shortest end of a line after an announcer. An empty one gives way to whatever comes next, as in the original."""
    shortest = ""
    for announcer in announcers:
        if announcer in line:
            end = line.rsplit(announcer, 1)[1].strip()
            if not shortest or len(end) < len(shortest):
                shortest = end
    return shortest


def _normal(text: str) -> list[str | float]:
    """A number rounded to two digits, or lower case. A single letter counts at the end of a word or at its beginning only."""
    text = text.strip()
    try:
        return [round(float(text.replace(",", "")), 2)]
    except ValueError:
        lower = text.lower()
        return [f" {lower}", f"{lower} "] if len(lower) == 1 else [lower]
