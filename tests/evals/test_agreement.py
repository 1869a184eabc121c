"""Agreement of two runs: counts by hand, the test against a slow sum, and refusals."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sightline.cli.main import main
from sightline.errors import ConfigError
from sightline.evals.agreement import compare, sign_test, table
from sightline.evals.sample_file import SampleWriter, read_sample_file


def write(path: Path, answers: dict[str, tuple[str, float]], asked: str = "d", **settings: Any) -> Path:
    """A run: by id, the answer and its score. Ids that begin with m are of the group maths, others of art."""
    writer = SampleWriter(path, {"task": "quiz", "split": "test", **settings}, {"model": path.stem}, {})
    for name, (got, score) in answers.items():
        groups = ["maths"] if name.startswith("m") else ["art"]
        writer.write({"id": name, "asked": asked, "groups": groups, "got": got, "score": score})
    writer.close()
    return path


A = {"m1": ("7", 1), "m2": ("8", 0), "m3": ("9 ", 1), "m4": ("x", 0), "a1": ("red", 1), "a2": ("blue", 1)}
B = {"m1": ("7", 1), "m2": ("8!", 0), "m3": ("9", 1), "m4": ("y", 1), "a1": ("green", 0), "a2": ("pink", 0)}


def test_counts(tmp_path: Path) -> None:
    found = compare(read_sample_file(write(tmp_path / "a.jsonl", A)), read_sample_file(write(tmp_path / "b.jsonl", B)))
    art, maths = found.groups
    assert (art.group, art.n, art.same_answer, art.same_score, art.a_better, art.b_better) == ("art", 2, 0, 0, 2, 0)
    assert (maths.group, maths.n, maths.same_answer, maths.same_score) == ("maths", 4, 2, 3)
    assert (maths.a_better, maths.b_better, maths.p_value) == (0, 1, 1.0)
    overall = found.overall
    assert (overall.n, overall.same_answer, overall.same_score, overall.a_better, overall.b_better) == (6, 2, 3, 2, 1)
    assert (overall.a_score, overall.b_score, overall.p_value) == (pytest.approx(4 / 6), pytest.approx(3 / 6), 1.0)
    assert art.p_value == 0.5  # two of two: 2 * (1/2)^2
    assert [one["id"] for one, _ in found.discordant] == ["m4", "a1", "a2"]
    shown = table(found)
    assert shown[1].split() == ["art", "2", "0.0%", "0.0%", "2", "0", "100.0%", "0.0%", "0.5"]
    assert len({len(line) for line in shown}) == 1


def slow_sign_test(one: int, other: int) -> float:
    """Every way in which coins could have fallen."""
    n = one + other
    outcomes = [abs(sum(coins) - n / 2) for coins in itertools.product((0, 1), repeat=n)]
    return sum(outcome >= abs(one - n / 2) for outcome in outcomes) / len(outcomes)


@given(st.integers(0, 5), st.integers(0, 5))
def test_sign_test(one: int, other: int) -> None:
    assert sign_test(one, other) == pytest.approx(slow_sign_test(one, other))


def test_sign_test_of_many() -> None:
    """Known values: 1 and 9 of 10 give 22/1024; thousands do not overflow."""
    assert sign_test(1, 9) == sign_test(9, 1) == 22 / 1024
    assert sign_test(0, 0) == 1.0 and sign_test(2000, 2000) == 1.0
    assert 0 < sign_test(2400, 2600) < 0.006


def test_partial_scores_are_compared_as_they_are(tmp_path: Path) -> None:
    one = write(tmp_path / "a.jsonl", {"m1": ("a", 0.75), "m2": ("b", 0.5)})
    other = write(tmp_path / "b.jsonl", {"m1": ("c", 0.875), "m2": ("d", 0.5)})
    overall = compare(read_sample_file(one), read_sample_file(other)).overall
    assert (overall.same_answer, overall.same_score, overall.b_better) == (0, 1, 1)
    assert overall.b_score - overall.a_score == pytest.approx(0.0625)
    assert overall.difference_error == pytest.approx(0.0625 / 2**0.5)  # gains of 0.125 and 0


def test_samples_that_one_run_lacks_are_left_out_and_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = write(tmp_path / "a.jsonl", {**A, "m9": ("1", 1)})
    with one.open("a") as file:
        file.write(json.dumps({"id": "m1", "asked": "d", "groups": ["maths"], "got": "", "score": 0, "error": "x"}) + "\n")
    found = compare(read_sample_file(one), read_sample_file(write(tmp_path / "b.jsonl", B)))
    assert (found.overall.n, found.only_a, found.only_b) == (5, 1, 1)
    assert main(["eval", "agree", str(one), str(tmp_path / "b.jsonl")]) == 0
    assert "Note: 1 samples are finished in A only and left out." in capsys.readouterr().out


def test_runs_that_were_not_asked_the_same_are_refused(tmp_path: Path) -> None:
    one = write(tmp_path / "a.jsonl", A, sampling={"max_tokens": 16})

    def refuses(sentence: str, other: Path) -> None:
        with pytest.raises(ConfigError, match=sentence):
            compare(read_sample_file(one), read_sample_file(other))

    refuses("sampling.max_tokens is 16 and 32", write(tmp_path / "b.jsonl", A, sampling={"max_tokens": 32}))
    same = {"sampling": {"max_tokens": 16}}
    refuses("sample 'm1' was asked with another text", write(tmp_path / "c.jsonl", A, asked="e", **same))
    refuses("have no finished sample in common", write(tmp_path / "d.jsonl", {"z": ("", 0)}, **same))
    other = SampleWriter(tmp_path / "e.jsonl", {"task": "test", "split": "test", **same}, {}, {})
    other.close()
    refuses(r"a\.jsonl and .*e\.jsonl cannot be compared: task is 'quiz' and 'test'", tmp_path / "e.jsonl")


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ([], 0),
        (["--fail-below", "0.33"], 0),  # 2 of 6 answers are the same
        (["--fail-below", "0.34"], 1),
        (["--fail-below", "0.5", "--on", "scores"], 0),
        (["--fail-below", "0.51", "--on", "scores"], 1),
        (["--fail-below", "1.1"], 1),
    ],
)
def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], code: int) -> None:
    a, b, kept = write(tmp_path / "a.jsonl", A), write(tmp_path / "b.jsonl", B), tmp_path / "out" / "agree.json"
    assert main(["eval", "agree", str(a), str(b), *options, "--json", str(kept)]) == code
    out, err = capsys.readouterr()
    if options[1:2] == ["1.1"]:
        assert err == "sightline: --fail-below is 1.1, but must be between 0 and 1.\n"
        return
    assert "4 of 6 answers differ, 3 are scored differently. B scores -16.67% ± 28.05%" in out and "p = 1." in out
    assert ("less than --fail-below" in out) == bool(code)
    figures = json.loads(kept.read_text())
    assert figures["task"] == "quiz" and figures["a"]["model"] == "a" and figures["overall"]["same_answer"] == 2
    assert figures["discordant"][0] == {"id": "m4", "a": "x", "b": "y", "a_score": 0, "b_score": 1}


def test_command_refuses_in_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = write(tmp_path / "a.jsonl", A)
    (tmp_path / "other").write_text('{"x": 1}\n')
    (tmp_path / "broken").write_text(a.read_text() + "oops\n")
    for other, sentence in (("other", "is not a file of samples"), ("none", "cannot be read"), ("broken", "in line 8")):
        assert main(["eval", "agree", str(a), str(tmp_path / other)]) == 1
        err = capsys.readouterr().err
        assert sentence in err and err.count("\n") == 1
