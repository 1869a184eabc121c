"""Running a task: every sample once, many at once, finished ones kept and not asked again, failures kept apart."""

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from evals.published_data import png
from sightline.errors import ConfigError, MediaError
from sightline.evals.answerer import AnswererGone, ModelAnswer
from sightline.evals.conversation import Conversation, user_message
from sightline.evals.report import failed, group_scores, remarks, summary, table
from sightline.evals.run import run_task, sampling_of
from sightline.evals.sample_file import SampleWriter, read_sample_file
from sightline.evals.task import Sample, Task, Verdict, Words

WHO = {"model": "scripted"}


class Scripted:
    """Answers by the text of the question."""

    def __init__(self, answer: Callable[[str], str] = str.upper) -> None:
        self.asked: list[str] = []
        self.about = WHO
        self._answer = answer

    def ask(self, conversation: Conversation, sampling: Mapping[str, Any]) -> ModelAnswer:
        question = conversation[-1]["content"][-1]["text"]
        self.asked.append(question)
        return ModelAnswer(self._answer(question), "stop", 3, 1)

    def close(self) -> None:
        pass


def make_task(count: int, suffix: str = "", groups: Callable[[int], tuple[str, ...]] = lambda n: ("all",)) -> Task:
    """Question n is right if the answer is its capitals."""

    def samples() -> Iterator[Sample]:
        for n in range(count):
            question = f"question {n}{suffix}"
            right = f"QUESTION {n}"
            yield Sample(
                f"s{n}",
                groups(n),
                question,
                user_message(question, {"": png(n)}),
                right,
                lambda answer, right=right: Verdict(float(answer == right)),  # type: ignore[misc]
            )

    return Task({"task": "made up", "split": "x"}, count, samples, (), 16, Words())


def writer(path: Path, **settings: Any) -> SampleWriter:
    return SampleWriter(path, {"task": "made up", **settings}, WHO, {"command": "test"})


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n")[:-1]]


def test_no_thread_outlives_a_run() -> None:
    """Red when one may hold the model last, and free it while the process ends: torch aborts it then, now and then."""
    for _ in range(50):
        run_task(make_task(3), Scripted(), {}, concurrency=8)
        assert not [thread for thread in threading.enumerate() if thread.name.startswith("asking-")]


@pytest.mark.parametrize("concurrency", [1, 3, 64])
def test_every_sample_once_and_in_order(concurrency: int) -> None:
    answerer = Scripted(lambda question: question.upper() if question != "question 4" else "no")
    judged = run_task(make_task(20), answerer, {}, concurrency)
    assert [one.record["id"] for one in judged] == [f"s{n}" for n in range(20)]
    assert [one.score for one in judged] == [1.0] * 4 + [0.0] + [1.0] * 15
    assert sorted(answerer.asked) == sorted(f"question {n}" for n in range(20))


def test_as_many_at_once_as_wished_and_no_more() -> None:
    """All of a batch wait for each other, so that fewer at once would wait for ever."""
    together = threading.Barrier(4, timeout=30)
    now, most = [0], [0]
    lock = threading.Lock()

    def answer(question: str) -> str:
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        together.wait()
        with lock:
            now[0] -= 1
        return ""

    run_task(make_task(8), Scripted(answer), {}, concurrency=4)
    assert most[0] == 4


def test_samples_are_read_as_they_are_needed() -> None:
    """Red if a large dataset is read into memory at once."""
    read: list[str] = []
    gap: list[int] = []
    task = make_task(60)
    plain = task.samples

    def watched() -> Iterator[Sample]:
        for sample in plain():
            read.append(sample.id)
            yield sample

    answerer = Scripted(lambda question: gap.append(len(read) - len(answerer.asked)) or "")
    run_task(Task(task.settings, 60, watched, (), 16), answerer, {}, concurrency=2)
    assert len(read) == 60 and max(gap) <= 5


def test_a_rerun_asks_what_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "kept" / "samples.jsonl"
    task = make_task(6)
    first = writer(path)
    run_task(make_task(3), Scripted(), {}, 1, first)
    first.close()
    with path.open("a") as file:
        file.write('{"id": "s3", "asked": "cut o')  # a crash while writing
    again, answerer = writer(path), Scripted()
    judged = run_task(task, answerer, {}, 2, again)
    again.close()
    assert sorted(answerer.asked) == ["question 3", "question 4", "question 5"]
    assert [one.record["id"] for one in judged] == [f"s{n}" for n in range(6)] and all(one.score == 1 for one in judged)
    head, *records = lines(path)
    assert head["settings"] == {"task": "made up"} and head["answerer"] == WHO and head["command"] == "test"
    assert sorted(record["id"] for record in records) == [f"s{n}" for n in range(6)]
    whole, nobody = writer(path), Scripted()
    assert [one.record for one in run_task(task, nobody, {}, 2, whole)] == [one.record for one in judged]
    assert not nobody.asked


def test_finished_samples_are_judged_by_the_rules_of_today(tmp_path: Path) -> None:
    first = writer(tmp_path / "samples.jsonl")
    run_task(make_task(2), Scripted(lambda question: "wrong"), {}, 1, first)
    first.close()
    path = tmp_path / "samples.jsonl"
    path.write_text(path.read_text().replace('"got": "wrong"', '"got": "QUESTION 0"'))
    scores = [one.score for one in run_task(make_task(2), Scripted(), {}, 1, writer(path))]
    assert scores == [1.0, 0.0]


def test_another_run_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    first = writer(path, sampling={"max_tokens": 16})
    run_task(make_task(2), Scripted(), {}, 1, first)
    first.close()
    before = path.read_bytes()
    with pytest.raises(ConfigError, match=r"holds another run: sampling\.max_tokens there and here is 16 and 32"):
        writer(path, sampling={"max_tokens": 32})
    with pytest.raises(ConfigError, match="holds another run: split there and here is None and 'test'"):
        writer(path, sampling={"max_tokens": 16}, split="test")
    with pytest.raises(ConfigError, match="model there and here is 'scripted' and 'other'"):
        SampleWriter(path, {"task": "made up", "sampling": {"max_tokens": 16}}, {"model": "other"}, {})
    same = writer(path, sampling={"max_tokens": 16})
    with pytest.raises(ConfigError, match="Sample 's0' was asked with another text or picture before"):
        run_task(make_task(2, suffix="!"), Scripted(), {}, 1, same)
    assert path.read_bytes() == before


def test_other_files_are_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    for content in ("my notes", "my notes\n", '{"id": 3}\n'):
        path.write_text(content)
        with pytest.raises(ConfigError, match=r"not a file of samples|no JSON object"):
            writer(path)
        assert path.read_text() == content
    path.write_text('{"sightline_eval": 1, "sett')  # nothing but the beginning of a first line: begun anew
    writer(path).close()
    assert len(lines(path)) == 1


def test_a_sample_that_cannot_be_answered_is_told_and_asked_again(tmp_path: Path) -> None:
    def answer(question: str) -> str:
        if question == "question 1":
            raise MediaError("The picture cannot be read.")
        return question.upper()

    path = tmp_path / "samples.jsonl"
    first = writer(path)
    judged = run_task(make_task(3), Scripted(answer), {}, 1, first)
    first.close()
    assert [one.score for one in judged] == [1.0, 0.0, 1.0] and failed(judged) == 1
    assert remarks(judged) == [
        "1 of 3 samples could not be answered and count as wrong:",
        "  1 times: The picture cannot be read.",
    ]
    healthy, again = Scripted(), writer(path)
    judged = run_task(make_task(3), healthy, {}, 1, again)
    again.close()
    assert healthy.asked == ["question 1"] and failed(judged) == 0
    assert read_sample_file(path).records["s1"]["got"] == "QUESTION 1"


@pytest.mark.parametrize("kind", [AnswererGone, ConfigError, RuntimeError])
def test_what_concerns_all_samples_ends_the_run_and_keeps_what_is_finished(tmp_path: Path, kind: type[Exception]) -> None:
    def answer(question: str) -> str:
        if question == "question 3":
            raise kind("gone")
        return question.upper()

    kept = writer(tmp_path / "samples.jsonl")
    with pytest.raises(kind, match="gone"):
        run_task(make_task(50), Scripted(answer), {}, 1, kept)
    kept.close()
    assert set(read_sample_file(tmp_path / "samples.jsonl").records) == {"s0", "s1", "s2"}


def test_two_samples_with_one_id_are_a_mistake() -> None:
    task = make_task(2)
    twice = Task(task.settings, 4, lambda: iter([*task.samples(), *task.samples()]), (), 16)
    with pytest.raises(ConfigError, match="Two samples have the id 's0'"):
        run_task(twice, Scripted(), {}, 1)
    with pytest.raises(ConfigError, match="--concurrency is 0"):
        run_task(task, Scripted(), {}, 0)


def test_sampling_is_greedy_unless_said_otherwise() -> None:
    task = make_task(1)
    assert sampling_of(task, None, {}) == {"temperature": 0, "max_tokens": 16}
    assert sampling_of(task, 7, {"top_k": 1}) == {"temperature": 0, "max_tokens": 7, "top_k": 1}
    assert sampling_of(task, 7, {"max_tokens": None, "max_completion_tokens": 9}) == {
        "temperature": 0,
        "max_completion_tokens": 9,
    }


def test_scores_by_group() -> None:
    """Each group counts its samples, groups within groups too; the error is that of a mean."""
    names = ("a", "a/x"), ("a", "a/y"), ("b",)
    task = make_task(9, groups=lambda n: names[n % 3])
    right = {"question 0", "question 3", "question 1", "question 8"}
    judged = run_task(task, Scripted(lambda question: question.upper() if question in right else ""), {}, 2)
    scores = {score.group: score for score in group_scores(judged, ("b", "a"))}
    assert list(scores) == ["b", "a", "a/x", "a/y", "overall"]
    assert [(one.n, one.points) for one in scores.values()] == [(3, 1), (6, 3), (3, 2), (3, 1), (9, 4)]
    assert scores["a"].standard_error == pytest.approx((0.5 * 0.5 / 6) ** 0.5)
    shown = table(list(scores.values()), task)
    assert shown[0].split() == ["group", "n", "correct", "accuracy", "std.", "error"]
    assert shown[3].startswith("  x ") and shown[3].split() == ["x", "3", "2", "66.7%", "27.2%"]
    assert shown[-1].split() == ["overall", "9", "4", "44.4%", "16.6%"]
    assert len({len(line) for line in shown}) == 1
    kept = json.loads(json.dumps(summary(task, judged, {"task": "made up"}, WHO, {"command": "c"})))
    assert (
        kept["overall"]["n"] == 9
        and [one["group"] for one in kept["groups"]] == ["a", "a/x", "a/y", "b"]
        and kept["prompt_tokens"] == 27
    )
    assert (kept["answerer"], kept["failed"], kept["cut_off"]) == (WHO, 0, 0)


def test_scores_between_0_and_1() -> None:
    task = make_task(4)
    parts = iter([0.5, 0.75, 1.0, 0.0])
    plain = list(task.samples())
    scored = [Sample(s.id, s.groups, s.question, s.conversation, "", lambda _: Verdict(next(parts))) for s in plain]
    judged = run_task(Task(task.settings, 4, lambda: iter(scored), (), 16), Scripted(), {}, 1)
    overall = group_scores(judged, ())[-1]
    assert overall.score == pytest.approx(0.5625) and overall.points == pytest.approx(2.25)
    variance = ((0.0625**2) + (0.1875**2) + (0.4375**2) + (0.5625**2)) / 4
    assert overall.standard_error == pytest.approx((variance / 4) ** 0.5)
    assert [one.record["correct"] for one in judged] == [False, False, True, False]


def test_notes_and_cut_off_answers_are_counted() -> None:
    class Short(Scripted):
        def ask(self, conversation: Conversation, sampling: Mapping[str, Any]) -> ModelAnswer:
            return ModelAnswer("x", "length", 1, 1)

    task = make_task(2)
    scored = [Sample(s.id, s.groups, "", s.conversation, "", lambda _: Verdict(0, "A", "was guessed")) for s in task.samples()]
    judged = run_task(Task(task.settings, 2, lambda: iter(scored), (), 16), Short(), {}, 1)
    assert remarks(judged) == ["2 of 2 answers: was guessed.", "2 of 2 answers were cut off at --max-tokens."]
