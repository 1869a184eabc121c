"""Forms of answers, compiled: once per form and tokenizer, within limits that keep a hostile one from holding up the others."""

import functools
import json
import re
from collections import OrderedDict
from threading import Lock
from typing import Any

import llguidance
import numpy as np
from llguidance.gbnf_to_lark import gbnf_to_lark

from sightline.errors import PromptError
from sightline.grammar.judge import judge
from sightline.grammar.matcher import Matcher, allowed_ids
from sightline.grammar.schema import Style, prepared
from sightline.grammar.vocabulary import vocabulary_of
from sightline.prompt.tokenizer import Tokenizer
from sightline.types import StructuredOutput

MAX_CHARACTERS = 65_536  # of a schema, an expression or a grammar; compiling one of this size takes a few tenths of a second
MAX_CACHED = 64
TRIAL_STEPS = 16
# Units of work of the library, which come to some tens of milliseconds for a step. Beyond them a request fails.
_LIMITS: dict[str, Any] = {
    "max_items_in_row": 5_000,
    "initial_lexer_fuel": 100_000,
    "step_lexer_fuel": 50_000,
    "step_max_items": 50_000,
    "max_lexer_states": 50_000,
    "max_grammar_size": 200_000,
    "verbose_errors": False,
}
_THOUGHT = r"""start: thought gap @answer
thought[lazy]: /(?s:.*)<\/think>/
gap: /\n{0,2}/
"""
_NOUNS = {
    "json_schema": "JSON schema",
    "json_object": "JSON object",
    "regex": "regular expression",
    "lark": "Lark grammar",
    "gbnf": "GBNF grammar",
}


def check(structured: StructuredOutput, tokenizer: Tokenizer) -> None:
    """Raises a PromptError if answers cannot have this form. The first call for a tokenizer takes about a second.

    A form that is new is judged in a process of its own first, which bounds the time that compiling takes. Then it is followed
    some steps along one answer, so that what is too complex is found before it is queued.
    """
    if find_grammar(structured, tokenizer) is not None:
        return
    source = _library_source(structured)
    if structured.kind in ("json_schema", "lark", "gbnf") and (fault := judge(source, _LIMITS)):
        raise _refusal(structured, _first_fault(fault))
    grammar = Grammar(_compile(structured, source, tokenizer), tokenizer.vocab_size)
    _try(structured, grammar.matcher(frozenset()), tokenizer)
    _cache_of(tokenizer).put(structured, grammar)


def _try(structured: StructuredOutput, trial: Matcher, tokenizer: Tokenizer) -> None:
    chance = np.random.default_rng(0)
    for step in range(TRIAL_STEPS):
        ids = allowed_ids(trial, tokenizer.vocab_size)
        if trial.error is not None:
            raise _refusal(structured, _first_fault(trial.error))
        if not len(ids):
            if step == 0:
                raise _refusal(structured, "it allows an empty answer only")
            return
        trial.advance(int(chance.choice(ids)))
        if trial.complete:
            return


def compile_grammar(structured: StructuredOutput, tokenizer: Tokenizer) -> "Grammar":
    """The compiled form, from the cache if it is there. Safe to call from several threads. Strangers' forms: `check` first."""
    found = find_grammar(structured, tokenizer)
    if found is None:
        found = Grammar(_compile(structured, _library_source(structured), tokenizer), tokenizer.vocab_size)
        _cache_of(tokenizer).put(structured, found)
    return found


def find_grammar(structured: StructuredOutput, tokenizer: Tokenizer) -> "Grammar | None":
    """The compiled form if it is in the cache."""
    return _cache_of(tokenizer).get(structured)


class Grammar:
    """A compiled form: the state at the beginning of an answer."""

    def __init__(self, beginning: llguidance.LLMatcher, end: int) -> None:
        self._beginning, self._end = beginning, end

    def matcher(self, end_tokens: frozenset[int]) -> Matcher:
        """The state of a new answer."""
        return Matcher(self._beginning.deep_copy(), self._end, end_tokens)


class _Cache:
    """The forms used last."""

    def __init__(self) -> None:
        self._entries: OrderedDict[StructuredOutput, Grammar] = OrderedDict()
        self._lock = Lock()

    def get(self, structured: StructuredOutput) -> Grammar | None:
        with self._lock:
            if structured in self._entries:
                self._entries.move_to_end(structured)
            return self._entries.get(structured)

    def put(self, structured: StructuredOutput, grammar: Grammar) -> None:
        with self._lock:
            self._entries[structured] = grammar
            while len(self._entries) > MAX_CACHED:
                self._entries.popitem(last=False)


@functools.lru_cache(maxsize=4)
def _cache_of(tokenizer: Tokenizer) -> _Cache:
    return _Cache()


def _library_source(structured: StructuredOutput) -> str:
    """The form in the library's own notation."""
    if structured.kind not in _NOUNS:
        raise PromptError(f"There is no structured output of kind {structured.kind!r}; there are {', '.join(_NOUNS)}.")
    if len(structured.text) > MAX_CHARACTERS:
        raise _refusal(structured, f"it has {len(structured.text)} characters, but at most {MAX_CHARACTERS} are allowed")
    if any("\ud800" <= char <= "\udfff" for char in structured.text):
        raise _refusal(structured, "it has a lone surrogate")
    parts = [{"name": "answer", **_source(structured)}]
    if structured.after_reasoning:
        parts.insert(0, {"name": "thought", "lark_grammar": _THOUGHT})
    return json.dumps({"grammars": parts})


def _compile(structured: StructuredOutput, source: str, tokenizer: Tokenizer) -> llguidance.LLMatcher:
    limits = llguidance.LLParserLimits(**_LIMITS)
    matcher = llguidance.LLMatcher(vocabulary_of(tokenizer), source, log_level=0, limits=limits)
    if matcher.is_error():
        raise _refusal(structured, _first_fault(matcher.get_error()))
    return matcher


def _source(structured: StructuredOutput) -> dict[str, Any]:
    """One grammar of several."""
    if structured.kind == "regex":
        if not structured.text:
            raise PromptError("The regular expression for the answer is empty.")
        # \d and \w are ASCII, as in patterns of JSON schemas: whoever asks for digits can seldom read those of all scripts.
        return {"lark_grammar": f"start: /{llguidance.regex_to_lark(structured.text, use_ascii='dw')}/"}
    if structured.kind == "lark":
        return {"lark_grammar": structured.text}
    if structured.kind == "gbnf":
        return {"lark_grammar": _lark_of(structured)}
    style: Style = "free" if structured.white_space else "compact"
    if structured.kind == "json_object":
        return {"json_schema": prepared({"type": "object"}, style)}
    try:
        schema = json.loads(structured.text)
    except (ValueError, RecursionError) as error:
        raise PromptError(f"The JSON schema for the answer is not JSON: {error}.") from None
    if not isinstance(schema, dict):
        raise PromptError(f"The JSON schema for the answer must be an object, not {structured.text[:40]!r}.")
    return {"json_schema": prepared(schema, style)}


def _lark_of(structured: StructuredOutput) -> str:
    try:
        return gbnf_to_lark(structured.text)
    except RecursionError:
        raise _refusal(structured, "it is nested too deeply") from None
    except Exception as error:  # the converter raises its own kinds, and any other on what it does not expect
        raise _refusal(structured, _first_fault(str(error))) from None


def _refusal(structured: StructuredOutput, fault: str) -> PromptError:
    shown = f" {structured.text[:80]!a}" if structured.kind == "regex" else ""
    return PromptError(f"The {_NOUNS[structured.kind]}{shown} for the answer cannot be used: {fault}.")


def _first_fault(message: str) -> str:
    """One line of what the library says, which may be a page with the source and pointers into it."""
    if message.startswith("NoExtension"):
        return "no answer fits it"
    if re.search(r"(?i)current row has|too many|fuel|too complex|too big|too large|unable to determine", message):
        return "it is too complex"
    pointed = re.search(r"^error: (.*)$", message, re.MULTILINE)
    line = pointed.group(1) if pointed else re.sub(r"^at \d+\(\d+\): ", "", message.strip().split("\n")[0])
    return line.strip().split(". Enable")[0].rstrip(".")[:200]  # settings that users cannot reach
