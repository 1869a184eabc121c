"""Scoring rules of OCRBench, DocVQA and ChartQA on cases made by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sightline.evals.benchmarks import chartqa, docvqa, ocrbench


@pytest.mark.parametrize(
    ("answer", "right", "score"),
    [
        ("CENTRE", ["centre"], 1),
        ("The text says 'Centre'.", ["CENTRE"], 1),
        ("cent", ["centre"], 0),
        ("two\nlines", ["two lines"], 1),
        ("two lines", ["two\nlines"], 1),
        ("two  lines", ["two lines"], 0),  # blanks count
        ("$ 12.50", ["12.50"], 1),
        ("12.5", ["12.50"], 0),
        ("1250", ["1,250"], 0),  # separators count
        ("b", ["a", "b"], 1),
        ("c", ["a", "b"], 0),
        ("", ["a"], 0),
        ("anything", [""], 1),
        ("  padded  ", [" padded "], 1),
        ("ＡＢＣ", ["abc"], 0),  # full-width letters are others
        ("ÜBER", ["über"], 1),
    ],
)
def test_ocrbench(answer: str, right: list[str], score: float) -> None:
    assert ocrbench.judge(answer, right, formulas=False).score == score


@pytest.mark.parametrize(
    ("answer", "right", "score"),
    [
        (r"\frac { 1 } { 2 }", [r"\frac{1}{2}"], 1),
        (r"x ^ 2 + y", ["x^2+y"], 1),
        ("x^2\n+ y", ["x ^ 2 + y"], 1),
        ("X^2", ["x^2"], 0),  # case counts
        ("", ["x"], 0),
    ],
)
def test_ocrbench_formulas(answer: str, right: list[str], score: float) -> None:
    assert ocrbench.judge(answer, right, formulas=True).score == score


@pytest.mark.parametrize(
    ("answer", "right", "score"),
    [
        ("Denver Broncos", ["Denver Broncos"], 1.0),
        ("denver  BRONCOS", ["Denver Broncos"], 1.0),
        ("12/15/89", ["12/15/88"], 1 - 1 / 8),
        ("12/15/89", ["1/1/70", "12/15/88"], 1 - 1 / 8),  # the nearest reference counts
        ("abcd", ["abxy"], 0.5),  # exactly at the threshold
        ("abcde", ["abxyz"], 0.0),  # 2/5 is below it
        ("", ["yes"], 0.0),
        ("yes", [""], 0.0),
        ("", [""], 1.0),
        ("0.28", ["0.28%"], 1 - 1 / 5),
        ("1,000", ["1000"], 1 - 1 / 5),
        ("Straße", ["STRASSE"], 1 - 2 / 7),  # two edits between the lower-case texts
        ("naïve", ["naive"], 1 - 1 / 5),
        ("長城", ["長城"], 1.0),
    ],
)
def test_anls(answer: str, right: list[str], score: float) -> None:
    assert docvqa.judge(answer, right).score == pytest.approx(score)


def test_white_space_shortens_no_text_for_the_share() -> None:
    """As the original: the length is that of the text as written, seven characters here."""
    assert docvqa.similarity("a   b", "a x") == pytest.approx(1 - 1 / 5)


def slow_distance(one: str, other: str) -> int:
    if not one or not other:
        return len(one) + len(other)
    return min(
        slow_distance(one[1:], other) + 1,
        slow_distance(one, other[1:]) + 1,
        slow_distance(one[1:], other[1:]) + (one[0] != other[0]),
    )


@given(st.text("abc", max_size=5), st.text("abc", max_size=5))
def test_edit_distance(one: str, other: str) -> None:
    assert docvqa.edit_distance(one, other) == slow_distance(one, other)


@pytest.mark.parametrize(
    ("answer", "right", "score"),
    [
        # within five per cent, on both sides, the ends included
        ("105", "100", 1),
        ("95", "100", 1),
        ("105.1", "100", 0),
        ("94.9", "100", 0),
        ("-95", "-100", 1),
        ("95", "-100", 0),
        ("1e2", "100", 1),
        # per cent
        ("12%", "0.12", 1),
        ("0.12", "12%", 1),
        ("12", "12%", 0),
        ("12 %", "12%", 1),
        ("50%", "51%", 1),
        # thousands separators
        ("1,234", "1234", 1),
        ("1234", "1,234", 1),
        ("1,234,567.5", "1234567.5", 1),
        ("12,5", "12.5", 0),  # a decimal comma is none
        ("1,23", "123", 0),
        # nothing is within five per cent of 0 but the same text
        ("0", "0", 1),
        ("0.0", "0", 0),
        ("0", "5", 0),
        # texts are equal but for case and blanks around them
        ("yes", "Yes", 1),
        (" Yes ", "yes", 1),
        ("Yes.", "Yes", 0),
        ("Norway", "Norway and Sweden", 0),
        ("ÅLAND", "Åland", 1),
        # a number with a unit is a text
        ("100 people", "100", 0),
        ("$100", "100", 0),
        # nothing
        ("", "100", 0),
        ("", "yes", 0),
        ("%", "%", 1),
        ("nan", "100", 0),
    ],
)
def test_relaxed_accuracy(answer: str, right: str, score: float) -> None:
    assert chartqa.judge(answer, right).score == score
