"""Each rule by which MMMU reads answers, on cases made by hand. A case turns red when its rule is dropped or reordered."""

from random import Random

import pytest

from sightline.evals.benchmarks.mmmu_answers import GUESSED, judge_choice, judge_open, read_choice, read_open

CITIES = {"A": "Paris", "B": "Rome", "C": "New York", "D": "York"}


@pytest.mark.parametrize(
    ("answer", "letter"),
    [
        # a letter alone, with what may stand around it
        ("B", "B"),
        ("B.", "B"),
        (" B\n", "B"),
        ("B!", "B"),
        ("'B'", "B"),
        ("Answer: B", "B"),
        # brackets win over bare letters, and the last of several counts
        ("(B)", "B"),
        ("It is (A), no, (C)", "C"),
        ("(C) and then (A) and (C) and (B)", "B"),
        ("A or D, so I say (B) D ", "B"),
        # bare letters between blanks; the article is one, too
        ("I think B is right", "B"),
        ("A is wrong but C fits", "C"),
        ("A city in Italy", "A"),
        ("Between B and D I take D today", "D"),
        # letters with a dot, not inside a word
        ("B. Rome", "B"),
        ("B.\nBecause it is old", "B"),
        ("The U.S.A. has it", None),
        ("1. A. Paris 2. C. New York", "C"),
        # a bare letter comes before one with a dot
        ("A. or B then", "B"),
        # letters inside words, in lower case or with other signs are none
        ("b", None),
        ("Apple", None),
        ("B)", None),
        ("**B**", None),
        # texts of options, only in answers of more than five words, whatever the case
        ("Rome", None),
        ("the answer must be rome", None),
        ("the answer to this must be rome", "B"),
        ("I first thought of Rome but it must be PARIS", "A"),
        # where two options end up at different places, the one that begins later counts: York lies within New York
        ("I would say the place is New York", "D"),
        # nothing
        ("", None),
        ("   ", None),
        ("?", None),
        ("I do not know the answer to this", None),
        # letters beyond the options
        ("E", None),
        ("Ｂ", None),
    ],
)
def test_which_option_is_meant(answer: str, letter: str | None) -> None:
    assert read_choice(answer, CITIES) == letter


def test_of_options_at_the_same_place_the_first_counts() -> None:
    options = {"A": "ten", "B": "ten percent"}
    assert read_choice("it has to be something like ten percent", options) == "A"


def test_ten_options() -> None:
    options = {chr(65 + n): str(n) for n in range(10)}
    assert read_choice("(J)", options) == "J"


def test_a_guess_is_seeded_and_told() -> None:
    """The same question is guessed the same whatever came before; other questions are guessed otherwise."""

    def guess(question: str) -> str:
        verdict = judge_choice("no idea", CITIES, "A", lambda: Random(question))
        assert verdict.note == GUESSED and verdict.score == float(verdict.read_as == "A")
        return verdict.read_as

    assert guess("q1") == guess("q1")
    guesses = [guess(f"q{n}") for n in range(400)]
    assert all(70 <= guesses.count(letter) <= 130 for letter in CITIES)


def test_no_guess_where_an_option_is_named() -> None:
    verdict = judge_choice("(B)", CITIES, "B", lambda: pytest.fail("guessed"))
    assert (verdict.score, verdict.read_as, verdict.note) == (1.0, "B", "")
    assert judge_choice("(C)", CITIES, "B", Random).score == 0.0


@pytest.mark.parametrize(
    ("answer", "right", "score"),
    [
        # numbers: equal after rounding to two digits, with or without separators
        ("6.5", ["6.5"], 1),
        ("6.50", ["6.5"], 1),
        ("6.333", ["6.33333"], 1),
        ("6.34", ["6.333"], 0),
        ("7,243,000", ["7243000"], 1),
        ("7243000", ["7,243,000"], 1),
        ("2e6", ["2000000"], 1),
        ("-141", ["-141"], 1),
        ("141", ["-141"], 0),
        ("It is .30", ["0.3"], 1),
        (".30", ["0.3"], 0),  # dots around the whole answer are taken off first, as in the original
        # a number within text, with a unit
        ("The total is 253.75 dollars.", ["253.75"], 1),
        ("36 watts", ["30"], 0),
        ("It costs $1,249", ["1249"], 1),
        ("x = 3\ny = 12.97", ["12.97"], 1),
        # only what is announced counts: the 8 comes before
        ("With 8 sides the answer is 5", ["8"], 0),
        ("With 8 sides the answer is 5", ["5"], 1),
        # the equals sign announces in the last line only
        ("x = 4\nso 5", ["4"], 0),
        ("x = 4", ["4"], 1),
        # texts: the reference lies within what is given
        ("embryonic", ["embryonic"], 1),
        ("It is Embryonic tissue.", ["embryonic"], 1),
        ("the embryo", ["embryonic"], 0),
        ("1/64", ["1/64"], 1),
        # several references: one suffices
        ("Florida", ["Tampa", "Florida"], 1),
        ("24/7", ["24/7", "3.429"], 1),
        ("3.43", ["24/7", "3.429"], 1),
        ("Miami", ["Tampa", "Florida"], 0),
        # a single letter must stand at the end or the beginning of a word
        ("C", ["C"], 1),
        ("the answer is c", ["C"], 1),
        ("vitamin c is good", ["C"], 0),
        ("vitamin c", ["C"], 1),
        # a number is no text, and text no number
        ("twelve", ["12"], 0),
        ("12", ["12 apples"], 0),
        # nothing given
        ("", ["5"], 0),
        ("", ["x"], 0),
        ("...", ["5"], 0),
        # other scripts
        ("Die Antwort: Straße", ["straße"], 1),
        ("答案 is 长城", ["长城"], 1),
    ],
)
def test_open_answers(answer: str, right: list[str], score: float) -> None:
    assert judge_open(answer, right).score == score


def test_what_is_read_from_an_open_answer() -> None:
    """Pieces of numbers with separators or exponents count as numbers of their own, as in the original."""
    assert read_open("So the result is 1,234.") == [1234.0, 234.0]
    assert read_open("The final answer is :\n42") == ["the final answer is :\n42", 42.0]
    assert read_open("a is b\nthus c d") == [" b", "b ", "c d"]
    assert read_open("It could be 1.5e-3") == [0.0, 1.0, -3.0]
