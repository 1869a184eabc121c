"""Text as it comes, against the obvious way: decode everything, cut at the first stop string."""

from collections.abc import Sequence

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sightline.errors import PromptError
from sightline.prompt.tokenizer import Tokenizer
from sightline.stream.detokenise import IncrementalText
from stream.tokenizers_to_try import SPECIAL, WORDS, bytes_only, leading_space, published, short_ids

END = 256  # a special token of bytes_only() and leading_space()
THINK = bytes_only().id_of("<think>")  # one token, but text
UNKNOWN = 100_000  # an id that bytes_only() does not have
TEXT = st.text(
    st.characters(exclude_categories=["Cs"]) | st.sampled_from("aab 🦙👩\u200d👧e\u0301日本語\u0e33한\ufffd\n"), max_size=30
)
STOPS = st.lists(st.text("ab 日🦙é\ufffd", min_size=1, max_size=4), max_size=3).map(tuple)
BROKEN = [b"\xf0", b"\xf0\x9f", b"\xf0\x9f\xa6", b"\x99", b"\xe4\xbd", b"\xff", b"\xc3"]  # one broken character each
CUTS = st.lists(st.integers(1, 5), min_size=1, max_size=5)


def chunks(ids: Sequence[int], sizes: Sequence[int]) -> list[list[int]]:
    """The ids in chunks of these sizes, over and over."""
    parts, start = [], 0
    while start < len(ids):
        size = sizes[len(parts) % len(sizes)]
        parts.append(list(ids[start : start + size]))
        start += size
    return parts


def cut(text: str, stops: Sequence[str]) -> str:
    return text[: min((at for stop in stops if (at := text.find(stop)) >= 0), default=len(text))]


def check(
    tokenizer: Tokenizer,
    parts: list[list[int]],
    stops: tuple[str, ...] = (),
    skip_special: bool = True,
    byte_level: bool = True,  # more tokens change nothing but broken characters at the end
) -> None:
    """Each delta against decoding all tokens so far."""
    stream = IncrementalText(tokenizer, stops, skip_special)
    given, ids = "", []
    for part in parts:
        ids += part
        given += stream.push(part)
        whole = tokenizer.decode(ids, skip_special)
        sure = whole.rstrip("\ufffd")
        if stream.stopped:
            # Broken characters at the end may not have been final yet when the stop string was found.
            lengths = range(len(sure), len(whole) + 1)
            assert given in {cut(whole[:n], stops) for n in lengths if cut(whole[:n], stops) != whole[:n]}
            assert stream.push([97]) == stream.finish() == ""
            return
        if not byte_level:
            continue
        assert whole.startswith(given)
        assert not any(stop in sure for stop in stops), "a complete stop string went unnoticed"
        # What may be held back: the end that begins a stop string, and an unfinished character.
        held = max((n for stop in stops for n in range(len(stop)) if sure.endswith(stop[:n])), default=0)
        assert len(given) >= len(sure) - held
    whole = tokenizer.decode(ids, skip_special)
    assert given + stream.finish() == cut(whole, stops)
    assert stream.stopped == any(stop in whole for stop in stops)


# ---- Any text, any tokens


@settings(deadline=None, max_examples=300)
@given(TEXT, STOPS, CUTS)
def test_text_byte_by_byte(text: str, stops: tuple[str, ...], sizes: list[int]) -> None:
    """Red if a character is given out before its last byte, twice or never, or a stop string across tokens is missed."""
    tokenizer = bytes_only()
    check(tokenizer, chunks(tokenizer.encode(text), sizes), stops)


@settings(deadline=None, max_examples=300)
@given(st.lists(st.integers(128, 255) | st.sampled_from([97, 0xF0, 0xE4, END, THINK, UNKNOWN]), max_size=60), STOPS, CUTS)
@example(ids=[0xFF] * 30 + [END] * 20 + [0xFF] * 50, stops=(), sizes=[50])  # a window that ends in silent tokens
@pytest.mark.parametrize("skip_special", [True, False])
def test_broken_bytes(skip_special: bool, ids: list[int], stops: tuple[str, ...], sizes: list[int]) -> None:
    """Red if broken bytes are lost, doubled or differ from decoding them together, with silent tokens between them."""
    check(bytes_only(), chunks(ids, sizes), stops, skip_special)


@settings(deadline=None, max_examples=100)
@given(st.lists(st.sampled_from(BROKEN), min_size=40, max_size=80), CUTS)
@example([b"\xe4\xbd"] * 60, [1])
@example([b"\xf0\x9f\xa6"] * 40 + [b"\x99"], [1])
def test_long_runs_of_broken_bytes(pieces: list[bytes], sizes: list[int]) -> None:
    """Red if the window is cut inside a character, or between bytes that decode to one broken character."""
    check(bytes_only(), chunks(list(b"".join(pieces)), sizes))


@settings(deadline=None, max_examples=100)
@given(TEXT, STOPS, CUTS)
@pytest.mark.parametrize("kind", ["qwen2_5", "qwen3"])
def test_published_tokenizers(kind: str, text: str, stops: tuple[str, ...], sizes: list[int]) -> None:
    """Red if tokens of several characters, or of the end of one and the beginning of the next, are split wrongly."""
    tokenizer = published(kind)
    check(tokenizer, chunks(tokenizer.encode(text + "<|im_end|>"), sizes), stops)


@settings(deadline=None, max_examples=100)
@given(st.data(), CUTS)
def test_pieces_of_characters_of_a_published_tokenizer(data: st.DataObject, sizes: list[int]) -> None:
    """Red if a token that ends one character and begins another is given out in part, or lost."""
    ids = data.draw(st.lists(st.sampled_from(short_ids("qwen3")), max_size=60))
    check(published("qwen3"), chunks(ids, sizes))


@settings(deadline=None, max_examples=200)
@given(st.lists(st.sampled_from([*WORDS, SPECIAL]) | st.text("日é🦙a\u0301", min_size=1, max_size=2), max_size=30), STOPS, CUTS)
@example(["▁"] * 7 + ["🦙"] * 5 + ["a🦙"] * 2, (), [1, 4])  # a long run of byte tokens that is whole in the end
@pytest.mark.parametrize("kind", ["strip", "metaspace"])
def test_leading_spaces(kind: str, words: list[str], stops: tuple[str, ...], sizes: list[int]) -> None:
    """Red if the anchor may be without text: the space before the next word would vanish as if it were the first."""
    tokenizer = leading_space(kind)
    known = {name: END + place for place, name in enumerate((SPECIAL, *WORDS))}
    ids = [token for word in words for token in ([known[word]] if word in known else word.encode())]
    check(tokenizer, chunks(ids, sizes), stops, byte_level=False)


# ---- Cases worth a name


def deltas(ids: Sequence[int], *stops: str, min_tokens: int = 0) -> tuple[list[str], bool]:
    """Of the byte tokenizer, token by token, finish last; and whether a stop string ended it."""
    stream = IncrementalText(bytes_only(), stops, min_tokens=min_tokens)
    return [stream.push([token]) for token in ids] + [stream.finish()], stream.stopped


@pytest.mark.parametrize(
    ("text", "stops", "given", "stopped"),
    [
        ("abc", (), ["a", "b", "c", ""], False),
        ("é!", (), ["", "é", "!", ""], False),
        ("xaab", ("aa",), ["x", "", "", "", ""], True),
        ("aaab", ("aab",), ["", "", "a", "", ""], True),  # the first a cannot belong to aab once the third came
        ("abab", ("abc",), ["", "", "ab", "", "ab"], False),  # held back to the end, then given out
        ("日本", ("日月",), ["", "", "", "", "", "日本", ""], False),
        ("x日本", ("本",), ["x", "", "", "日", "", "", "", ""], True),
        ("abcd", ("bc", "abcd"), ["", "", "a", "", ""], True),  # the one that is complete first stops the answer
        ("xabc", ("c", "abc"), ["x", "", "", "", ""], True),  # complete together: the one that starts first
    ],
)
def test_token_by_token(text: str, stops: tuple[str, ...], given: list[str], stopped: bool) -> None:
    """Red if text comes later than it can, or earlier than it may."""
    assert deltas(bytes_only().encode(text), *stops) == (given, stopped)


def test_a_stop_string_inside_one_token() -> None:
    """Red if the rest of the token behind the stop string is given out."""
    stream = IncrementalText(published("qwen3"), ("ell",))
    (token,) = published("qwen3").encode("Hello")
    assert stream.push([token]) == "H"
    assert stream.stopped


def test_an_unfinished_character_is_given_out_at_the_end() -> None:
    """Red if finish drops what never became a character, or gives it out twice."""
    stream = IncrementalText(bytes_only())
    assert stream.push([97, 0xE6, 0x97]) == "a"
    assert stream.finish() == "\ufffd"
    assert stream.finish() == ""


def test_a_stop_string_may_be_found_at_the_end_only() -> None:
    """Red if the text that finish gives out is not searched."""
    assert deltas([97, 0xE6], "\ufffd") == (["a", "", ""], True)
    assert deltas([97, 98, 0xE6], "b\ufffd") == (["a", "", "", ""], True)


def test_special_tokens_inside_a_character() -> None:
    """Red if a skipped token ends a character: decoding joins the bytes on both sides of it."""
    first, *rest = "日".encode()
    assert deltas([first, END, *rest]) == (["", "", "", "日", ""], False)


def test_special_tokens_that_are_text() -> None:
    """Red if skip_special_tokens hides <think>, or its absence hides <|endoftext|>."""
    assert deltas([97, THINK, END, 98]) == (["a", "<think>", "", "b", ""], False)
    stream = IncrementalText(bytes_only(), skip_special_tokens=False)
    assert stream.push([97, END, 98]) == "a<|endoftext|>b"


def test_min_tokens_disarms_stop_strings() -> None:
    """Red if a stop string ends the answer too early, or one that began before the limit and ended after it does not."""
    ids = bytes_only().encode("abab")
    assert deltas(ids, "ab", min_tokens=0) == (["", "", "", "", ""], True)
    assert deltas(ids, "ab", min_tokens=2) == (["", "", "", "", ""], True)
    assert deltas(ids, "ab", min_tokens=3) == (["", "ab", "", "", ""], True)
    assert deltas(ids, "ba", min_tokens=3) == (["a", "", "", "", ""], True)
    assert deltas(ids, "ab", min_tokens=5) == (["", "ab", "", "ab", ""], False)
    assert deltas(ids, "abab", "b", "a", min_tokens=3) == (["", "", "ab", "", ""], True)  # the disarmed b is not found again
    assert deltas(b"ababa", "aba", min_tokens=4) == (["", "", "ab", "", "", ""], True)  # it may overlap a disarmed one
    stream = IncrementalText(bytes_only(), ("ab",), min_tokens=3)
    assert stream.push(ids) == "ab"  # a chunk across the limit
    assert stream.stopped


def test_an_empty_stop_string_is_refused() -> None:
    """Red if an empty stop string, which is everywhere, ends each answer at once."""
    with pytest.raises(PromptError, match="stop contains an empty string"):
        IncrementalText(bytes_only(), ("x", ""))


def test_endless_broken_bytes_are_given_out() -> None:
    """Red if broken bytes are held back for good: the reader would see nothing until the end."""
    stream = IncrementalText(bytes_only())
    assert len("".join(stream.push([0xFF]) for _ in range(200))) > 170


# ---- Cost


class Counting(Tokenizer):
    """Counts the ids it decodes."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__(tokenizer._backend, "counting")
        self.decoded = 0

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        self.decoded += len(ids)
        return super().decode(ids, skip_special_tokens)


@pytest.mark.parametrize(
    ("ids", "most"),
    [
        (list(b"plain text "), 4),
        (list("日本🦙".encode()), 12),
        ([0xFF], 100),
        ([0xE6, 0xFF, 0x97], 100),
        ([END], 4),
        ([UNKNOWN], 4),
        ([97, END, END, END], 4),
    ],
)
def test_cost_does_not_grow_with_the_answer(ids: list[int], most: int) -> None:
    """Red if the window grows with the answer: after plain text, broken bytes, or tokens without text."""
    tokenizer = Counting(bytes_only())
    stream = IncrementalText(tokenizer, ("zzz",))
    for place in range(3000):
        stream.push([ids[place % len(ids)]])
    assert tokenizer.decoded < most * 3000


def test_cost_of_spaces_of_a_leading_space_tokenizer() -> None:
    """Red if tokens that are empty on their own keep the anchor from moving."""
    tokenizer = Counting(leading_space("strip"))
    stream = IncrementalText(tokenizer)
    space = END + 1 + WORDS.index("▁")
    assert "".join(stream.push([space]) for _ in range(1000)) == " " * 999
    assert tokenizer.decoded < 12 * 1000
