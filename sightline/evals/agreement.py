"""Whether two runs of a task answered alike: per sample, and by a test of whether one of them scored better.

The test is the two-sided exact sign test over samples whose scores differ: if neither run is better, each of them is won by
either run with probability 1/2. For scores of 0 and 1 that is McNemar's exact test.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sightline.errors import ConfigError
from sightline.evals.report import OVERALL
from sightline.evals.sample_file import SampleFile, same_or_refuse

Record = Mapping[str, Any]
Pair = tuple[Record, Record]


@dataclass(frozen=True)
class GroupAgreement:
    group: str
    n: int
    same_answer: int  # texts, but for blanks around them
    same_score: int
    a_better: int
    b_better: int
    a_score: float  # means
    b_score: float
    difference_error: float  # standard error of b_score - a_score, sample by sample
    p_value: float

    @property
    def answer_share(self) -> float:
        return self.same_answer / self.n

    @property
    def score_share(self) -> float:
        return self.same_score / self.n


@dataclass(frozen=True)
class Agreement:
    groups: tuple[GroupAgreement, ...]
    overall: GroupAgreement
    only_a: int  # samples that only one run has finished; left out of all else
    only_b: int
    discordant: tuple[Pair, ...]  # scored differently


def compare(a: SampleFile, b: SampleFile) -> Agreement:
    """Refuses runs that were not asked the same."""
    same_or_refuse(a, b, ("settings",))
    done_a, done_b = ({name: one for name, one in file.records.items() if not one.get("error")} for file in (a, b))
    pairs = [(done_a[name], done_b[name]) for name in done_a if name in done_b]
    if not pairs:
        raise ConfigError(f"{a.path} and {b.path} have no finished sample in common.")
    for one, other in pairs:
        if one["asked"] != other["asked"]:
            raise ConfigError(
                f"{a.path} and {b.path} cannot be compared: sample {one['id']!r} was asked with another text or picture."
            )
    groups = sorted({group for one, _ in pairs for group in one["groups"]})
    return Agreement(
        groups=tuple(_agreement(group, [pair for pair in pairs if group in pair[0]["groups"]]) for group in groups),
        overall=_agreement(OVERALL, pairs),
        only_a=len(done_a) - len(pairs),
        only_b=len(done_b) - len(pairs),
        discordant=tuple(pair for pair in pairs if pair[0]["score"] != pair[1]["score"]),
    )


def _agreement(group: str, pairs: Sequence[Pair]) -> GroupAgreement:
    a_better = sum(one["score"] > other["score"] for one, other in pairs)
    b_better = sum(one["score"] < other["score"] for one, other in pairs)
    gains = [other["score"] - one["score"] for one, other in pairs]
    mean = math.fsum(gains) / len(pairs)
    variance = math.fsum((gain - mean) ** 2 for gain in gains) / len(pairs)
    return GroupAgreement(
        group=group,
        n=len(pairs),
        same_answer=sum(one["got"].strip() == other["got"].strip() for one, other in pairs),
        same_score=len(pairs) - a_better - b_better,
        a_better=a_better,
        b_better=b_better,
        a_score=math.fsum(one["score"] for one, _ in pairs) / len(pairs),
        b_score=math.fsum(other["score"] for _, other in pairs) / len(pairs),
        difference_error=math.sqrt(variance / len(pairs)),
        p_value=sign_test(a_better, b_better),
    )


def sign_test(one: int, other: int) -> float:
    """Probability, if both sides are equally likely, of a result at least as uneven as this one, to either side."""
    n, fewer = one + other, min(one, other)
    tail = sum(math.comb(n, k) for k in range(fewer + 1))
    return min(1.0, 2 * tail / (1 << n))


def table(agreement: Agreement) -> list[str]:
    rows = [*agreement.groups, agreement.overall]
    labels = ["  " * row.group.count("/") + row.group.split("/")[-1] for row in rows]
    first = max(12, *(len(label) for label in labels))
    lines = [f"{'':{first}s}     n   same answer   same score   A better   B better   score A   score B   p-value"]
    for label, row in zip(labels, rows, strict=True):
        shares = f"{row.n:6d}   {row.answer_share:11.1%}   {row.score_share:10.1%}"
        lines.append(
            f"{label:{first}s}{shares}   {row.a_better:8d}   {row.b_better:8d}   {row.a_score:7.1%}   {row.b_score:7.1%}"
            f"   {row.p_value:7.3g}"
        )
    return lines


def as_json(agreement: Agreement, a: SampleFile, b: SampleFile) -> dict[str, Any]:
    return {
        **a.settings,
        "a": {"file": str(a.path), **a.answerer},
        "b": {"file": str(b.path), **b.answerer},
        "overall": _figures(agreement.overall),
        "groups": [{"group": row.group, **_figures(row)} for row in agreement.groups],
        "only_in_a": agreement.only_a,
        "only_in_b": agreement.only_b,
        "discordant": [
            {"id": one["id"], "a": one["got"], "b": other["got"], "a_score": one["score"], "b_score": other["score"]}
            for one, other in agreement.discordant
        ],
    }


def _figures(row: GroupAgreement) -> dict[str, Any]:
    return {name: value for name, value in asdict(row).items() if name != "group"}
