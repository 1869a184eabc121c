"""Asks the samples of a task, many at once, and judges the answers."""

import contextlib
import queue
import threading
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sightline.errors import ConfigError, UserError
from sightline.evals.answerer import Answerer, AnswererGone, ModelAnswer
from sightline.evals.conversation import digest
from sightline.evals.sample_file import SampleWriter
from sightline.evals.task import Sample, Task, Verdict

Record = Mapping[str, Any]


@dataclass(frozen=True)
class Judged:
    """A sample that is done. One that could not be answered has an error and scores 0."""

    record: Record  # as it stands in the file of samples

    @property
    def groups(self) -> tuple[str, ...]:
        return tuple(self.record["groups"])

    @property
    def score(self) -> float:
        return float(self.record["score"])


def sampling_of(task: Task, max_tokens: int | None, extra: Mapping[str, Any]) -> dict[str, Any]:
    """What is asked of the sampler: greedy, unless `extra` says otherwise. None in `extra` takes a field away."""
    chosen = {"temperature": 0, "max_tokens": max_tokens or task.max_tokens, **task.sampling, **extra}
    return {name: value for name, value in chosen.items() if value is not None}


def run_task(
    task: Task,
    answerer: Answerer,
    sampling: Mapping[str, Any],
    concurrency: int = 32,
    writer: SampleWriter | None = None,
    told: Callable[[Judged], None] = lambda judged: None,
) -> list[Judged]:
    """Every sample, in the order of the task. Those that `writer` knows to be finished are judged anew, not asked again."""
    if concurrency < 1:
        raise ConfigError(f"--concurrency is {concurrency}, but must be at least 1.")
    done: dict[str, Judged] = {}

    def keep(record: Record, is_new: bool) -> None:
        if record["id"] in done:
            raise ConfigError(f"Two samples have the id {record['id']!r}.")
        if is_new and writer is not None:
            writer.write(record)
        done[record["id"]] = Judged(record)
        told(done[record["id"]])

    finished = writer.finished if writer is not None else {}
    order: list[str] = []

    def questions() -> Iterator[tuple[Sample, str]]:
        for sample in task.samples():
            order.append(sample.id)
            asked = digest(sample.conversation)
            if sample.id in finished:
                keep(_rejudged(sample, asked, finished[sample.id]), is_new=False)
            else:
                yield sample, asked

    with contextlib.closing(_answered(questions(), answerer, sampling, concurrency)) as answers:
        for sample, asked, answer in answers:
            keep(_record(sample, asked, answer), is_new=True)
    return [done[name] for name in order]


def _answered(
    questions: Iterator[tuple[Sample, str]], answerer: Answerer, sampling: Mapping[str, Any], concurrency: int
) -> Generator[tuple[Sample, str, ModelAnswer | UserError]]:
    """Answers as they come. Samples are read only as fast as they are asked."""
    waiting: queue.SimpleQueue[tuple[Sample, str] | None] = queue.SimpleQueue()
    answers: queue.SimpleQueue[tuple[Sample, str, ModelAnswer | BaseException]] = queue.SimpleQueue()

    def ask() -> None:
        while (question := waiting.get()) is not None:
            try:
                answers.put((*question, answerer.ask(question[0].conversation, sampling)))
            except BaseException as error:
                answers.put((*question, error))

    # Daemons: an interrupted run does not wait for answers that are on their way.
    threads = [threading.Thread(target=ask, name=f"asking-{n}", daemon=True) for n in range(concurrency)]
    for thread in threads:
        thread.start()
    pending, more = 0, True
    try:
        while more or pending:
            while more and pending < 2 * concurrency:
                question = next(questions, None)
                if question is None:
                    more = False
                else:
                    waiting.put(question)
                    pending += 1
            if pending:
                sample, asked, answer = answers.get()
                pending -= 1
                yield sample, asked, _usable(answer)
    finally:
        for _ in threads:
            waiting.put(None)
        if not pending:
            # They end at once. One that outlived the run could be the last to hold the model, and free it while the process
            # ends: torch then aborts it.
            for thread in threads:
                thread.join()


def _usable(answer: ModelAnswer | BaseException) -> ModelAnswer | UserError:
    """An answer, or an error that is about this sample alone: it is too long, its picture cannot be read. Raises all others."""
    if isinstance(answer, ModelAnswer):
        return answer
    if isinstance(answer, UserError) and not isinstance(answer, AnswererGone | ConfigError):
        return answer
    raise answer


def _record(sample: Sample, asked: str, answer: ModelAnswer | UserError) -> Record:
    known = {
        "id": sample.id,
        "asked": asked,
        "groups": list(sample.groups),
        "question": sample.question,
        "expected": sample.expected,
        **sample.extra,
    }
    if isinstance(answer, UserError):
        return {**known, "got": "", **_judgement(Verdict(0.0)), "error": str(answer)}
    return {
        **known,
        "got": answer.text,
        **_judgement(sample.judge(answer.text)),
        "finish_reason": answer.finish_reason,
        "prompt_tokens": answer.prompt_tokens,
        "completion_tokens": answer.completion_tokens,
    }


def _rejudged(sample: Sample, asked: str, record: Record) -> Record:
    if record["asked"] != asked:
        raise ConfigError(f"Sample {sample.id!r} was asked with another text or picture before; name another file of samples.")
    return {**record, "groups": list(sample.groups), **_judgement(sample.judge(record["got"]))}


def _judgement(verdict: Verdict) -> dict[str, Any]:
    return {
        "score": verdict.score,
        "correct": verdict.score == 1.0,
        "read_as": verdict.read_as,
        "note": verdict.note,
    }
