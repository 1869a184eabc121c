"""Chat templates that come to an end: a budget of steps that is compiled into them (template_sandbox.py).

A template is a program that comes with a checkpoint, and a thread that runs one for ever cannot be stopped from outside. So
every turn of a loop, call, range, filter and operation that can make something large pays for itself: one step, and one more
for each kilobyte or so that it makes, before it makes it. Now and then the thread's processor time is looked at as well,
because what stands between two steps may be long.

The budget grows with the messages: what a long conversation needs is counted when the first part of it is spent.
"""

import contextlib
import functools
import re
import string
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import jinja2
from jinja2.sandbox import safe_range
from jinja2.utils import Namespace

from sightline.errors import PromptError

T = TypeVar("T")
STEPS, STEPS_PER_VALUE = 200_000, 100  # a turn of a template's loop over messages takes about three
SECONDS, SECONDS_PER_VALUE = 1.0, 1e-4  # of the processor; ordinary templates take 5 microseconds for a value
MOST_SOURCE = 1 << 18  # characters of a template; those of known models have 10,000 at most
_CHECK_EVERY = 64  # steps; a look at the clock takes a microsecond
CHARACTERS = 1024  # that one step pays for
_ENTRIES = 64  # of a list that one step pays for
_WIDEST = 10_000  # a width, a precision, an indentation, a number of columns
_MOST_BITS = 1 << 16  # of a whole number
_WIDE_PERCENT = re.compile(r"%[^a-zA-Z%]*(?:\d{5}|\*)")  # a field of 10,000 characters or more, or as many as are computed
_WIDE_SPEC = re.compile(r"\d{5}|\{")  # the same after the colon in braces
_CONTAINERS = (list, tuple, dict, Namespace)
_BY_WIDTH = frozenset("center ljust rjust zfill expandtabs to_bytes".split())  # methods whose argument is a width
GROWING = _BY_WIDTH | frozenset(("replace", "join", "translate"))  # those that can make a long text of a short one
_SPLITTING = frozenset(("split", "rsplit", "splitlines"))
COMPARING = tuple("== eq equalto != ne > gt greaterthan >= ge < lt lessthan <= le in".split())  # tests
_OF_JINJA = ("_loop_vars", "_block_vars")  # arguments that generated code adds
FREE = frozenset(("length", "count", "first", "last", "default", "d"))  # filters that cost no more than a look at a variable
# Filters that read a value as text, or compare values: lists in lists, each there twice, have a text that nothing can hold.
_DEEP = frozenset(
    "string e escape forceescape upper lower capitalize title trim center indent format replace truncate wordcount urlencode "
    "join safe int float tojson sort unique groupby min max dictsort".split()
)
_TAKES_ANY_NUMBER = frozenset("default d int float map select reject selectattr rejectattr sum format".split())


class TemplateBudgetError(PromptError):
    """A template did more than any that ends needs to."""


class RenderBudget:
    """What one rendering may spend; `inputs` are what it is given."""

    def __init__(self, inputs: Any, seconds: float | None = None) -> None:
        """`seconds`, if given, is all the time there is, whatever the inputs."""
        self._inputs, self._may_grow = inputs, seconds is None
        self._most_steps, self._most_seconds = STEPS, SECONDS if seconds is None else seconds
        self._spent, self._left = 0, _CHECK_EVERY  # until the next look
        self._began = time.thread_time()

    def spend(self, steps: int) -> None:
        self._left -= steps
        if self._left < 0:
            self._look()

    def step(self) -> bool:
        """spend(1), as a condition that always holds."""
        self._left -= 1
        if self._left < 0:
            self._look()
        return True

    def _look(self) -> None:
        self._spent += _CHECK_EVERY - self._left
        self._left = _CHECK_EVERY
        if self._is_spent() and self._may_grow:
            self._may_grow = False
            values = _count(self._inputs)
            self._most_steps += STEPS_PER_VALUE * values
            self._most_seconds += SECONDS_PER_VALUE * values
        if self._is_spent():
            raise TemplateBudgetError(
                "The chat template does not come to an end: it took more steps than the messages explain."
            )

    def _is_spent(self) -> bool:
        return self._spent > self._most_steps or time.thread_time() - self._began > self._most_seconds


class _Active(threading.local):
    """What this thread spends."""

    budget: RenderBudget


active = _Active()


def spending(budget: RenderBudget, work: Callable[[], T]) -> T:
    """Compiles or renders within a budget."""
    active.budget = budget
    try:
        return work()
    finally:
        del active.budget


def text_of(value: Any) -> str:
    return value if type(value) is str else str(paid(value))


def joined(parts: Sequence[Any]) -> str:
    """The parts as one text: `a ~ b`."""
    return concat(map(text_of, parts))


def concat(parts: Iterable[str]) -> str:
    texts = list(parts)
    size = sum(map(len, texts))
    if size >= CHARACTERS:
        _pay_characters(size)
    return "".join(texts)


def paying_range(*bounds: int) -> range:
    made = safe_range(*bounds)
    active.budget.spend(1 + len(made) // _ENTRIES)
    return made


def _pay_characters(count: int) -> None:
    active.budget.spend(1 + count // CHARACTERS)


def paid(value: Any) -> Any:
    """The value, paid for with all that is in it, as often as it is in it."""
    if isinstance(value, _CONTAINERS):
        waiting: list[Any] = [value]
        while waiting:
            one = waiting.pop()
            if isinstance(one, str):
                _pay_characters(len(one))
                continue
            active.budget.spend(1)
            if isinstance(one, dict):
                waiting.extend(one)
                waiting.extend(one.values())
            elif isinstance(one, (list, tuple)):
                active.budget.spend(len(one) // _ENTRIES)
                waiting.extend(one)
            elif isinstance(one, Namespace):
                raise jinja2.TemplateError("A namespace has no text.")
    return value


def held(value: Any) -> Any:
    """The value, paid for as an entry of a list or an object."""
    if type(value) is str:
        if len(value) >= CHARACTERS:
            _pay_characters(len(value))
        return value
    return paid(value)


def copied(value: Any) -> Any:
    """The value, paid for as far as a copy of it has to be: a slice, a method."""
    if isinstance(value, (str, bytes)):
        _pay_characters(len(value))
    elif isinstance(value, (list, tuple, dict)):
        active.budget.spend(1 + len(value) // _ENTRIES)
    return value


def pay_arguments(args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Of a call that may keep them."""
    active.budget.spend(1 + len(args) // _ENTRIES)
    for value in args:
        paid(value)
    for name, value in kwargs.items():
        if name not in _OF_JINJA:
            paid(value)


def paying_test(function: Any) -> Callable[..., Any]:
    """A test that compares what it is given: `x is eq(y)`."""

    @functools.wraps(function)
    def paying(*args: Any) -> Any:
        active.budget.spend(1)
        for value in args:
            paid(value)
        return function(*args)

    return paying


def pay_operation(operator: str, left: Any, right: Any) -> None:
    sized = (str, bytes, list, tuple)
    steps = 1
    if operator == "+":
        if isinstance(left, sized) and isinstance(right, sized):
            steps += (len(left) + len(right)) // (CHARACTERS if isinstance(left, str) else _ENTRIES)
            if isinstance(left, (list, tuple)):
                paid(min(left, right, key=len))  # so that a list has no more in it than was paid for
    elif operator == "*":
        for many, times in ((left, right), (right, left)):
            if isinstance(many, sized) and isinstance(times, int):
                size = len(many)
                if isinstance(many, (list, tuple)) and any(isinstance(entry, _CONTAINERS) for entry in many):
                    size = _ENTRIES * _count(many)
                steps += max(times, 0) * size // (CHARACTERS if isinstance(many, str) else _ENTRIES)
        if isinstance(left, int) and isinstance(right, int) and left.bit_length() + right.bit_length() > _MOST_BITS:
            raise jinja2.TemplateError("A number is too large.")
    elif operator == "**":
        if isinstance(left, int) and isinstance(right, int) and left.bit_length() * abs(right) > _MOST_BITS:
            raise jinja2.TemplateError("A number is too large.")
    elif isinstance(left, (str, bytes)):  # % as format
        check_percent_format(left)
        paid(right if isinstance(right, (tuple, dict)) else (right,))
        steps += len(left) // CHARACTERS
    active.budget.spend(steps)


def is_wide_percent_format(form: str | bytes) -> bool:
    return _WIDE_PERCENT.search(form if isinstance(form, str) else form.decode("latin-1")) is not None


def check_percent_format(form: str | bytes) -> None:
    if is_wide_percent_format(form):
        raise jinja2.TemplateError("A format has a field that is too wide.")


def check_brace_format(form: str) -> None:
    """What str.format cannot parse it will refuse itself."""
    with contextlib.suppress(ValueError):
        for _, _, spec, _ in string.Formatter().parse(form):
            if spec and _WIDE_SPEC.search(spec):
                raise jinja2.TemplateError("A format has a field that is too wide.")


def pay_method(owner: str | bytes | int, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """For a method of a text or a number, before it is called; most make no more than there is."""
    made = 0 if isinstance(owner, int) else len(owner)
    if name in _BY_WIDTH:
        width = max((value for value in (*args, *kwargs.values()) if isinstance(value, int)), default=8)
        _check_width(width)
        made += width * (made if name == "expandtabs" else 1)
    elif name == "replace" and len(args) > 1 and isinstance(args[1], (str, bytes)):
        made *= 1 + len(args[1])
    elif name == "join" and args and isinstance(args[0], Sequence):
        made = sum(len(part) + made for part in args[0] if isinstance(part, (str, bytes)))
    elif name == "translate" and args and isinstance(args[0], Mapping):
        made *= 1 + max((len(text) for text in args[0].values() if isinstance(text, str)), default=0)
    elif name in _SPLITTING:
        made *= CHARACTERS // _ENTRIES
    _pay_characters(made)


def _check_width(width: int) -> None:
    if abs(width) > _WIDEST:
        raise jinja2.TemplateError(f"A width of {width} is too large.")


def paying_filter(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that pays for what it is given, and for what it makes of it."""
    skipped = 1 if hasattr(function, "jinja_pass_arg") else 0  # it is given an environment or a context first

    @functools.wraps(function)  # with the attribute that says which
    def paying(*args: Any, **kwargs: Any) -> Any:
        if name in ("join", "sum") and len(args) > skipped:
            args = (*args[:skipped], list(_each_paid(args[skipped])), *args[skipped + 1 :])
        value, options = args[skipped] if len(args) > skipped else None, (*args[skipped + 1 :], *kwargs.values())
        if not options and type(value) is str and len(value) < CHARACTERS:
            return function(*args)
        if name in _DEEP:
            paid((value, *options))
        if name not in _TAKES_ANY_NUMBER:
            for option in options:
                if type(option) is int:
                    _check_width(option)
        if name in ("map", "batch", "slice"):  # what is missing is filled in, so many times
            active.budget.spend(_WIDEST * sum(_count(option) - 1 for option in options if isinstance(option, _CONTAINERS)))
        if name == "replace" and isinstance(value, str):
            pay_method(value, "replace", options, {})
        elif name == "format" and isinstance(value, str):
            check_percent_format(value)
        elif name in ("join", "indent", "tojson") and options:
            _pay_separators(value, options)
        elif name == "sum":
            args = (*args[:skipped], _each_paid(args[skipped]), *args[skipped + 1 :])
        made = function(*args, **kwargs)
        return copied(made) if isinstance(made, (str, list)) else made

    return paying


def _pay_separators(value: Any, options: Sequence[Any]) -> None:
    """For a text between the entries of a list, or before the lines of a text, as often as it may stand there."""
    texts = [text for option in options for text in (option if isinstance(option, (list, tuple)) else (option,))]
    between = sum(len(text) if isinstance(text, str) else text for text in texts if isinstance(text, (str, int)))
    times = _count(value) if isinstance(value, (list, tuple, dict)) else value.count("\n") if isinstance(value, str) else 0
    _pay_characters(between * times)


def _each_paid(values: Iterable[Any]) -> Iterator[Any]:
    for value in values:
        active.budget.spend(1)
        yield value


def _count(value: Any) -> int:
    """How many values there are in lists and objects, and one more for each kilobyte of text."""
    count, waiting = 0, [value]
    while waiting:
        one = waiting.pop()
        count += 1 + (len(one) // CHARACTERS if isinstance(one, str) else 0)
        if isinstance(one, Mapping):
            waiting.extend(one.values())
        elif isinstance(one, (list, tuple)):
            waiting.extend(one)
    return count
