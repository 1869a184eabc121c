"""Several tokens a sequence and step: whatever a drafter guesses, answers are those of plain decoding."""

from pathlib import Path
from typing import Any

import pytest

from conftest import PAGED_FAMILIES
from engine.harness import driver, plain_answer, request_of, small_picture
from sightline.schedule.state import Sequence

WAYS: list[dict[str, Any]] = [
    {},
    {"temperature": 1.0, "seed": 3, "top_p": 0.9},
    {"temperature": 0.9, "seed": 4, "repetition_penalty": 1.3, "presence_penalty": 0.4, "frequency_penalty": 0.2},
    {"temperature": 1.0, "seed": 5, "min_tokens": 9, "end_tokens": frozenset(range(0, 320, 7)), "stop": ("q",)},
    {"logprobs": True, "top_logprobs": 2},
    {"temperature": 1.0, "seed": 6, "n": 2},
]


class FakeDrafter:
    """Knows the answers, and guesses some tokens wrong."""

    def __init__(self, answers: dict[int, list[list[int]]], count: int, wrong: int) -> None:
        self.answers, self.count, self.wrong = answers, count, wrong
        self.guessed = self.right = 0

    def __call__(self, sequence: Sequence) -> tuple[int, ...]:
        done = len(sequence.output)
        known = next((a for a in self.answers.get(sequence.arrival, ()) if a[:done] == sequence.output), [])
        guesses = known[done : done + self.count]
        for place in range(len(guesses)):
            if self.wrong and (done + place) % self.wrong == 0:
                guesses[place] = (guesses[place] + 1) % 300
        self.guessed += len(guesses)
        return tuple(guesses)


@pytest.mark.parametrize("family", PAGED_FAMILIES)
@pytest.mark.parametrize(("count", "wrong"), [(1, 0), (3, 0), (4, 3), (2, 2), (5, 1)])
def test_guesses_change_nothing(tiny_checkpoints: dict[str, Path], family: str, count: int, wrong: int) -> None:
    """Red when a wrong guess stays in the answer, in the counts of penalties, in the keys and values or in a shared page; when
    a right one shifts random numbers; or when a token after the end is told."""
    folder = tiny_checkpoints[family]
    requests = [request_of(folder, "One ", small_picture(1), " two"), request_of(folder, "Only words, a few of them.")]
    plain = driver(folder, overlap=False)
    asked = [(request, way) for request in requests for way in WAYS]
    numbers = [plain.add(request, tokens=20, **way) for request, way in asked]
    plain.run()
    answers = {n: [plain.tokens(n, i) for i in range(way.get("n", 1))] for n, (_, way) in zip(numbers, asked, strict=True)}
    drafter = FakeDrafter(answers, count, wrong)
    run = driver(folder, drafter=drafter, max_num_batched_tokens=64, page_size=2)
    same = [run.add(request, tokens=20, **way) for request, way in asked]
    assert same == numbers, "the drafter knows answers by number"
    run.run()
    assert drafter.guessed > 50
    for number, (_, way) in zip(numbers, asked, strict=True):
        for index in range(way.get("n", 1)):
            one, other = run.completions[number, index], plain.completions[number, index]
            assert (one.token_ids, one.text, one.finish_reason) == (other.token_ids, other.text, other.finish_reason), way
            assert [p.token_id for p in one.logprobs] == [p.token_id for p in other.logprobs]
    if not wrong:
        assert run.engine.counts.steps < plain.engine.counts.steps / min(count, 2)
    assert run.tokens(numbers[0]) == plain_answer(folder, requests[0], 20)
    assert run.engine.schedule.pages.private_pages == 0
