"""Scores by group with their standard errors, as a table and as JSON."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sightline.evals.run import Judged
from sightline.evals.task import Task

OVERALL = "overall"


@dataclass(frozen=True)
class GroupScore:
    group: str
    n: int
    points: float  # the sum of scores
    score: float  # their mean
    standard_error: float  # of the mean: sqrt(variance / n), which is sqrt(p (1 - p) / n) for scores of 0 and 1


def group_scores(judged: Sequence[Judged], order: Sequence[str]) -> list[GroupScore]:
    """A score per group that occurs, those of `order` first, and the overall one last."""
    found = dict.fromkeys(group for one in judged for group in one.groups)
    groups = [*(group for group in order if group in found), *(group for group in found if group not in order)]
    scores = [_score(group, [one.score for one in judged if group in one.groups]) for group in groups]
    return [*scores, _score(OVERALL, [one.score for one in judged])]


def _score(group: str, scores: Sequence[float]) -> GroupScore:
    n = len(scores)
    mean = math.fsum(scores) / n if n else 0.0
    variance = math.fsum((score - mean) ** 2 for score in scores) / n if n else 0.0
    return GroupScore(group, n, math.fsum(scores), mean, math.sqrt(variance / n) if n else 0.0)


def table(scores: Sequence[GroupScore], task: Task) -> list[str]:
    """Groups within groups are indented below theirs."""
    words = task.words
    labels = [_label(score.group) for score in scores]
    first = max(12, *(len(label) for label in labels), len(words.group))
    points = max(9, len(words.points) + 2)
    mean = max(10, len(words.score) + 2)
    lines = [f"{words.group:{first}s}{'n':>6s} {words.points:>{points}s} {words.score:>{mean}s}   std. error"]
    for label, score in zip(labels, scores, strict=True):
        shown = f"{score.points:.0f}" if float(score.points).is_integer() else f"{score.points:.1f}"
        lines.append(f"{label:{first}s}{score.n:6d} {shown:>{points}s} {score.score:>{mean}.1%}   {score.standard_error:10.1%}")
    return lines


def _label(group: str) -> str:
    *outer, name = group.split("/")
    return "  " * len(outer) + name


def totals(judged: Sequence[Judged], seconds: float, finished_before: int = 0) -> str:
    """Time and tokens of a run. The time is that of this run, the tokens those of all samples."""
    minutes, rest = divmod(round(seconds), 60)
    time = f"{minutes}:{rest:02d} min" if minutes else f"{seconds:.1f} s"
    before = f" ({finished_before} of {len(judged)} samples were answered before)" if finished_before else ""
    given, made = (sum(one.record.get(f"{kind}_tokens", 0) for one in judged) for kind in ("prompt", "completion"))
    return f"Time {time}{before}, {given:,} input tokens, {made:,} output tokens"


def remarks(judged: Sequence[Judged]) -> list[str]:
    """Sentences about what the scores alone do not say."""
    lines = []
    for note, count in Counter(one.record["note"] for one in judged if one.record["note"]).most_common():
        lines.append(f"{count} of {len(judged)} answers: {note}.")
    if cut := sum(one.record.get("finish_reason") == "length" for one in judged):
        lines.append(f"{cut} of {len(judged)} answers were cut off at --max-tokens.")
    failed = Counter(one.record["error"] for one in judged if one.record.get("error"))
    if failed:
        lines.append(f"{sum(failed.values())} of {len(judged)} samples could not be answered and count as wrong:")
        lines += [f"  {count} times: {error}" for error, count in failed.most_common(5)]
    return lines


def failed(judged: Sequence[Judged]) -> int:
    return sum(bool(one.record.get("error")) for one in judged)


def summary(
    task: Task,
    judged: Sequence[Judged],
    settings: Mapping[str, Any],
    answerer: Mapping[str, Any],
    about: Mapping[str, Any],
) -> dict[str, Any]:
    *groups, overall = group_scores(judged, task.group_order)
    return {
        **settings,
        "answerer": dict(answerer),
        **about,
        "score_is": task.words.score,
        "overall": _without_name(overall),
        "groups": [asdict(score) for score in groups],
        "failed": failed(judged),
        "cut_off": sum(one.record.get("finish_reason") == "length" for one in judged),
        "notes": dict(Counter(one.record["note"] for one in judged if one.record["note"])),
        "remarks": list(task.notes),
        "prompt_tokens": sum(one.record.get("prompt_tokens", 0) for one in judged),
        "completion_tokens": sum(one.record.get("completion_tokens", 0) for one in judged),
    }


def _without_name(score: GroupScore) -> dict[str, Any]:
    return {name: value for name, value in asdict(score).items() if name != "group"}
