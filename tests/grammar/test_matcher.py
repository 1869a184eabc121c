"""Which tokens may come next, against slow reading of small languages; end tokens, bans and widths of masks."""

import re
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sightline.errors import ConfigError
from sightline.grammar.compile import compile_grammar
from sightline.grammar.matcher import Matcher, allowed_tokens
from sightline.grammar.vocabulary import vocabulary_of
from sightline.models.locate import EMBEDDED
from sightline.prompt.tokenizer import Tokenizer
from sightline.types import StructuredOutput
from stream.tokenizers_to_try import bytes_only, leading_space, published


@pytest.fixture(params=["bytes", "embedded", "published"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return {"bytes": bytes_only, "embedded": embedded_tokenizer, "published": lambda: published("qwen3")}[request.param]()


@lru_cache
def embedded_tokenizer() -> Tokenizer:
    return Tokenizer.from_folder(EMBEDDED)


def ids_of(words: np.ndarray, columns: int) -> set[int]:
    return {token for token in range(columns) if words[token // 32] >> (token % 32) & 1}


def allowed(matcher: Matcher, columns: int, banned: Sequence[int] = ()) -> set[int]:
    return ids_of(allowed_tokens([matcher], [banned], columns)[0].tolist(), columns)


def matcher_of(tokenizer: Tokenizer, kind: str, text: str, ends: Sequence[int] = ()) -> Matcher:
    return compile_grammar(StructuredOutput(kind, text), tokenizer).matcher(frozenset(ends))


def visible_bytes(tokenizer: Tokenizer) -> dict[int, bytes]:
    """The bytes of each token that is text, as the grammar library has them."""
    library = vocabulary_of(tokenizer)
    found = {}
    for token in range(tokenizer.vocab_size):
        data = library.decode_bytes([token])
        if data and not library.is_special_token(token):
            found[token] = data
    return found


def test_bytes_of_tokens_are_those_that_decode(tokenizer: Tokenizer) -> None:
    """Red when a byte of the vocabulary is mapped wrongly, or when a token that shows no text counts as text."""
    text = visible_bytes(tokenizer)
    rng = np.random.default_rng(0)
    for token in rng.choice(tokenizer.vocab_size, 2000):
        shown = tokenizer.decode([int(token)])
        if "\ufffd" not in shown:  # else a piece of a character, or a byte that is in none
            assert shown == text.get(int(token), b"").decode()
    pieces = [tokenizer.encode(char) for char in "€漢🦙𓀀"]
    assert any(len(piece) > 1 for piece in pieces), "some characters should be split over tokens"
    for char, piece in zip("€漢🦙𓀀", pieces, strict=True):
        assert b"".join(text[token] for token in piece) == char.encode()
    assert tokenizer.id_of("<|im_end|>") not in text


words = st.lists(st.text("abñ漢", min_size=1, max_size=4), min_size=1, max_size=5, unique=True)


@pytest.mark.parametrize("kind", ["bytes", "embedded"])
@given(words=words, choices=st.lists(st.integers(0, 1000), min_size=20, max_size=20))
def test_masks_are_those_of_the_language(kind: str, words: list[str], choices: list[int]) -> None:
    """A token is allowed if some word of the language goes on with its bytes; the end is where a word is complete."""
    tokenizer = bytes_only() if kind == "bytes" else embedded_tokenizer()
    text = visible_bytes(tokenizer)
    end = tokenizer.id_of("<|im_end|>")
    matcher = matcher_of(tokenizer, "regex", "|".join(map(re.escape, words)), [end])
    language = [word.encode() for word in words]
    written = b""
    for choice in choices:
        going_on = {token for token, data in text.items() if any(word.startswith(written + data) for word in language)}
        columns = tokenizer.vocab_size + 5
        assert allowed(matcher, columns) == going_on | ({end} if written in language else set())
        assert matcher.may_end == (written in language)
        if not going_on:
            break
        token = sorted(going_on)[choice % len(going_on)]
        matcher.advance(token)
        written += text[token]
        longer = any(word.startswith(written) and word != written for word in language)
        assert matcher.complete == (not longer)


def test_ends_and_bans() -> None:
    tokenizer = bytes_only()
    a, b, end, other = ord("a"), ord("b"), tokenizer.id_of("<|im_end|>"), tokenizer.id_of("<|endoftext|>")
    matcher = matcher_of(tokenizer, "regex", "a+b?", [end, other])
    columns = tokenizer.vocab_size
    assert allowed(matcher, columns) == {a}
    matcher.advance(a)
    assert allowed(matcher, columns) == {a, b, end, other}
    assert allowed(matcher, columns, banned=[end, other]) == {a, b}
    assert allowed(matcher, columns, banned=[a, b, end, other]) == {a, b, end, other}, "a ban on all of them is none"
    matcher.advance(b)
    assert matcher.complete
    assert allowed(matcher, columns, banned=[end, other]) == {end, other}, "what is complete ends"


@pytest.mark.parametrize("columns", [98, 110, 128, 256, 276, 300, 512, 2048])
def test_masks_fit_the_logits(columns: int) -> None:
    """Logits may have more columns than the tokenizer has ids, or fewer. Red when a bit lands outside or beyond."""
    tokenizer = bytes_only()
    matchers = [matcher_of(tokenizer, "regex", "[a-z]+", [tokenizer.id_of("<|im_end|>")]) for _ in range(3)]
    matchers[1].advance(ord("q"))
    masks = allowed_tokens(matchers, [()] * 3, columns)
    assert masks.shape == (3, -(-columns // 32)) and masks.dtype == np.int32
    letters = {token for token in range(ord("a"), ord("z") + 1) if token < columns}
    ends = {token for token in [tokenizer.id_of("<|im_end|>")] if token < columns}
    room = masks.shape[1] * 32
    assert [ids_of(row.tolist(), room) for row in masks] == [letters, letters | ends, letters]


def test_a_wrong_token_is_an_error_of_its_row_alone() -> None:
    tokenizer = bytes_only()
    good, bad = (matcher_of(tokenizer, "regex", "ab") for _ in range(2))
    bad.advance(ord("x"))
    masks = allowed_tokens([bad, good], [(), ()], 300)
    assert bad.error is not None and good.error is None and not bad.complete
    assert ids_of(masks[1].tolist(), 300) == {ord("a")}
    assert (masks[0] == -1).all(), "a row without any token would draw from nothing"


def test_other_decoders_are_refused() -> None:
    with pytest.raises(ConfigError, match="byte-level"):
        vocabulary_of(leading_space("strip"))
