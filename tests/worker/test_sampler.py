"""Choosing tokens: filters, penalties, log-probabilities, and that a row's token does not depend on its batch."""

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from sightline.ops.dispatch import definitions_only
from sightline.ops.sampling import SELECT_UP_TO, best_first
from sightline.sampling_params import UniformNumbers
from sightline.worker import sampler
from sightline.worker.penalties import PenaltyCounts
from sightline.worker.sampler import ROWS_AT_ONCE, Way, way_of
from sightline.worker.step_input import SamplingRow, SlotReset
from worker.sampling_rows import CHANCES, DEVICES, LOGITS, frequencies, make_row, prepared, sample, sampling, survivors

# ---- Filters


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("values", "kept"),
    [
        ({}, {0, 1, 2, 3, 4}),
        ({"top_k": 0}, {0, 1, 2, 3, 4}),
        ({"top_k": -1}, {0, 1, 2, 3, 4}),
        ({"top_k": 1}, {0}),
        ({"top_k": 2}, {0, 1}),
        ({"top_k": 99}, {0, 1, 2, 3, 4}),  # more than there are
        ({"top_k": SELECT_UP_TO + 1}, {0, 1, 2, 3, 4}),  # sorted instead of selected
        ({"top_p": 1e-9}, {0}),  # at least one
        ({"top_p": 0.49}, {0}),
        ({"top_p": 0.51}, {0, 1}),  # the one that crosses the line stays
        ({"top_p": 0.95}, {0, 1, 2, 3}),
        ({"top_p": 0.9999}, {0, 1, 2, 3, 4}),
        ({"min_p": 0.29}, {0, 1, 2}),
        ({"min_p": 0.31}, {0, 1}),
        ({"min_p": 1.0}, {0}),
        ({"top_k": 3, "top_p": 0.84}, {0, 1, 2}),  # of what top-k left, 0.56 + 0.28 are below the line
        ({"top_k": 3, "top_p": 0.83}, {0, 1}),
        ({"top_p": 0.95, "min_p": 0.29}, {0, 1, 2}),
        ({"top_k": 2, "min_p": 0.01}, {0, 1}),
        ({"top_k": 4, "top_p": 0.51, "min_p": 0.01}, {0}),  # 0.52 of what top-k left
        ({"temperature": 0.05}, {0}),
        ({"temperature": 0.5, "top_p": 0.75}, {0, 1}),  # top-p sees chances after temperature: 0.74, 0.18
        ({"temperature": 0.5, "min_p": 0.26}, {0}),
    ],
)
def test_filters_keep_exactly(values: dict[str, float], kept: set[int], device: str) -> None:
    """Red if a filter keeps one token too many or too few, or sees chances from before the filter ahead of it."""
    assert survivors(LOGITS.to(device), values) == kept


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("values", [{}, {"top_k": 4}, {"top_p": 0.97}, {"min_p": 0.1}, {"temperature": 2.0, "top_k": 5}])
def test_chances_of_what_is_left(values: dict[str, float], device: str) -> None:
    """Red if the chances of the survivors are not theirs over the sum of the survivors', at the right temperature."""
    often = frequencies(LOGITS.to(device), values, times=10_000)
    weights = np.array(CHANCES) ** (1 / values.get("temperature", 1.0)) * (np.array(often) > 0)
    np.testing.assert_allclose(often, weights / weights.sum(), atol=1.01e-4)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("values", [{}, {"top_k": 5}, {"top_p": 0.999}])
def test_frequencies_of_real_random_numbers(values: dict[str, float], device: str) -> None:
    """Red if the random numbers are not uniform, are used twice, or fall on the wrong token."""
    numbers, times = UniformNumbers(5, 0, 0), 20_000
    rows = [make_row(values, uniform=numbers.at(position)) for position in range(times)]
    counts = np.bincount(sample(LOGITS.to(device).expand(times, -1), rows).token_ids.cpu().numpy(), minlength=5)
    expected = np.array(CHANCES) * times
    assert ((counts - expected) ** 2 / expected).sum() < 18.5  # chi-square with 4 degrees of freedom: 1 in 1000


@pytest.mark.parametrize("device", DEVICES)
def test_the_ends_of_the_uniform_numbers(device: str) -> None:
    """Red if the largest number falls off the last token, or any number on a token without chances."""
    scores = torch.tensor([-torch.inf, 0.0, -torch.inf, -1.0, -torch.inf], device=device)
    for values in ({}, {"top_k": 5}, {"top_p": 0.9999}):
        rows = [make_row(values, uniform=number) for number in (0.0, 1 - 2**-53)]
        assert sample(scores.expand(2, -1), rows).token_ids.tolist() == [1, 3]


@pytest.mark.parametrize("device", DEVICES)
def test_equal_scores_go_by_id(device: str) -> None:
    """Red if ties make top-k keep more than k, or others than the first: which ones would depend on the batch's shape."""
    scores = torch.tensor([1.0, 3.0, 2.0, 3.0, 3.0, -0.0, 2.0, 0.0], device=device)
    assert survivors(scores, {"top_k": 2}) == {1, 3}
    assert survivors(scores, {"top_k": 4}) == {1, 2, 3, 4}
    assert survivors(scores, {"top_p": 0.4}) == {1, 3}
    assert survivors(scores, {"min_p": 1.0}) == {1, 3, 4}
    assert survivors(torch.zeros(4, device=device), {"top_p": 0.5}) == {0, 1}  # exactly on the line: nothing crosses it


@pytest.mark.parametrize("device", DEVICES)
def test_best_first_is_a_stable_sort(device: str) -> None:
    """Red if the integer keys order some floats differently: signs, infinities, ties."""
    scores = torch.randn(4, 3000, generator=torch.Generator().manual_seed(1)).to(device)
    scores[1] = scores[1].round()
    scores[2, 5:9] = -torch.inf
    scores[3] *= 1e30
    values, ids = scores.sort(dim=1, descending=True, stable=True)
    for count in (1, 7, 3000):
        found = best_first(scores, count)
        assert torch.equal(found[0], values[:, :count])
        assert torch.equal(found[1], ids[:, :count])  # round() makes zeros of both signs, and they are equal


# ---- Greedy, bias, penalties, bans


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("temperature", [0.0, 1e-6])  # generation configs write the latter
def test_greedy_takes_the_best_whatever_the_random_number(temperature: float, device: str) -> None:
    """Red if a greedy row draws, or is not the argmax."""
    rows = [make_row({"temperature": temperature}, uniform=number) for number in (0.0, 0.5, 0.99)]
    assert sample(LOGITS.to(device).expand(3, -1), rows).token_ids.tolist() == [0, 0, 0]


def greedy(scores: list[float], values: dict[str, Any], device: str, **row: Any) -> int:
    logits = torch.tensor([scores], device=device)
    return int(sample(logits, [make_row({"temperature": 0.0, **values}, **row)]).token_ids)


@pytest.mark.parametrize("device", DEVICES)
def test_repetition_penalty(device: str) -> None:
    """Red if the penalty misses prompt or answer, counts repeats, or turns a negative score up."""
    values = {"repetition_penalty": 2.0}
    assert greedy([3.0, 2.0, 1.0], values, device) == 0
    assert greedy([3.0, 2.0, 1.0], values, device, prompt=[0]) == 1  # 1.5
    assert greedy([3.0, 2.0, 1.0], values, device, output=[0]) == 1
    assert greedy([3.0, 1.4, 1.0], values, device, prompt=[0, 0, 0], output=[0, 0]) == 0  # once, however often
    assert greedy([-1.0, -1.5, -3.0], values, device, prompt=[0]) == 1  # -2
    assert greedy([-1.0, -2.1, -3.0], values, device, prompt=[0]) == 0


@pytest.mark.parametrize("device", DEVICES)
def test_presence_and_frequency_penalties(device: str) -> None:
    """Red if they see the prompt, or one counts as the other does."""
    scores = [3.0, 2.0, 1.0]
    assert greedy(scores, {"presence_penalty": 1.1}, device, prompt=[0]) == 0
    assert greedy(scores, {"presence_penalty": 1.1}, device, output=[0]) == 1
    assert greedy(scores, {"presence_penalty": 0.9}, device, output=[0] * 9) == 0
    assert greedy(scores, {"frequency_penalty": 0.4}, device, output=[0, 2, 0]) == 0
    assert greedy(scores, {"frequency_penalty": 0.4}, device, output=[0, 2, 0, 0]) == 1
    assert greedy(scores, {"frequency_penalty": 0.3, "presence_penalty": 0.3}, device, output=[0, 0]) == 0  # 2.1
    assert greedy(scores, {"frequency_penalty": 0.3, "presence_penalty": 0.5}, device, output=[0, 0]) == 1  # 1.9
    assert greedy(scores, {"presence_penalty": -1.1}, device, output=[1]) == 1


@pytest.mark.parametrize("device", DEVICES)
def test_logit_bias_comes_before_the_penalties(device: str) -> None:
    """Red if the bias goes to another token or another row, or is added to a score that was penalised already."""
    assert greedy([3.0, 2.0, 1.0], {"logit_bias": {2: 2.5, 0: -100}}, device) == 2
    # (1 + 2.5) / 2 = 1.75; the other way round 0.5 + 2.5 = 3
    assert greedy([0.0, 2.0, 1.0], {"logit_bias": {2: 2.5}, "repetition_penalty": 2.0}, device, prompt=[2]) == 1


@pytest.mark.parametrize("device", DEVICES)
def test_banned_tokens_never_come(device: str) -> None:
    """Red if a ban is lifted by a bias, or a filter keeps a banned token."""
    assert greedy([3.0, 2.0, 1.0], {"logit_bias": {0: 100}}, device, banned=[0]) == 1
    assert greedy([3.0, 2.0, 1.0], {}, device, banned=[0, 1]) == 2
    for values in ({}, {"top_k": 3}, {"top_p": 0.99}):
        assert 0 not in survivors(LOGITS.to(device), values, banned=[0])
    assert survivors(LOGITS.to(device), {"top_k": 2}, banned=[0]) == {1, 2}


@pytest.mark.parametrize("device", DEVICES)
def test_counts_of_a_slot_follow_its_answer(device: str) -> None:
    """Red if a slot that lives for many steps misses new tokens, counts some twice, keeps those of the sequence before, or
    those of drafts; or if a token that only the device knows is taken from another slot."""
    asked = sampling({"temperature": 0.0, "frequency_penalty": 0.4, "repetition_penalty": 1.1})
    counts = PenaltyCounts(3, 5, torch.device(device))
    sampled = torch.tensor([4, 2, 3], device=device)

    def row(count_ids: tuple[int, ...] = (), draft_ids: tuple[int, ...] = ()) -> SamplingRow:
        return SamplingRow(1, asked, count_ids=count_ids, draft_ids=draft_ids)

    def seen(rows: list[SamplingRow], resets: tuple[SlotReset, ...] = ()) -> list[list[int]]:
        counts.update(rows, resets, sampled)
        in_answer, in_prompt = counts.of(rows)
        assert in_prompt.tolist() == [[False, True, False, False, True]] * len(rows)
        return in_answer.tolist()

    first = SlotReset(1, np.array([1, 4]))
    assert seen([row()], (first,)) == [[0, 0, 0, 0, 0]]
    assert seen([row((0,))]) == [[1, 0, 0, 0, 0]]
    assert seen([row((0, 2))]) == [[2, 0, 1, 0, 0]]
    assert seen([row((-1,))]) == [[2, 0, 2, 0, 0]], "the token that slot 1 sampled last"
    drafted = [row((3,)), row((), (0,)), row((), (0, 4))]
    assert seen(drafted) == [[2, 0, 2, 1, 0], [3, 0, 2, 1, 0], [3, 0, 2, 1, 1]]
    assert seen([row((0,))]) == [[3, 0, 2, 1, 0]], "the rejected draft is forgotten"
    assert seen([row((2,))], (first,)) == [[0, 0, 1, 0, 0]]


def test_the_logits_stay_as_they_are() -> None:
    """Red if a penalty or a filter writes into the model's output."""
    logits = LOGITS.repeat(2, 1)
    values = {"logit_bias": {1: 1.0}, "repetition_penalty": 1.5, "presence_penalty": 1.0, "min_p": 0.3}
    sample(logits, [make_row(values, [0], [1], [2]), make_row({"min_p": 0.3})])
    sample(logits, [make_row({"min_p": 0.3}), make_row({"min_p": 0.3})])
    assert torch.equal(logits, LOGITS.repeat(2, 1))


def test_an_id_outside_the_vocabulary_is_our_bug() -> None:
    """Red if such an id changes a score of the row below instead."""
    with pytest.raises(AssertionError, match=r"not within 0 … 4"):
        sample(LOGITS[None], [make_row({"logit_bias": {5: 1.0}})])


# ---- Log-probabilities


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_logprobs_are_of_the_logits_as_they_came(device: str, dtype: torch.dtype) -> None:
    """Red if penalties, temperature or filters enter, the arithmetic is not float32, or rows are mixed up."""
    logits = torch.randn(4, 700, generator=torch.Generator().manual_seed(2)).mul(4).to(device, dtype)
    wild = {"temperature": 0.3, "top_k": 9, "repetition_penalty": 1.3, "logit_bias": {3: 5.0}}
    asked = [{"logprobs": True, "top_logprobs": 3}, {}, {"logprobs": True, **wild}, {"logprobs": True, "top_logprobs": 20}]
    out = sample(logits, [make_row(values, prompt=[1], uniform=(place + 1) / 6) for place, values in enumerate(asked)])
    truth = logits.float().log_softmax(dim=1)
    assert out.logprobs is not None and out.top_ids is not None and out.top_logprobs is not None
    assert out.logprobs.shape == (4,) and out.top_ids.shape == out.top_logprobs.shape == (4, 20)
    for place in (0, 2, 3):
        torch.testing.assert_close(out.logprobs[place], truth[place, out.token_ids[place]], atol=5e-6, rtol=0)
    for place in (0, 3):
        best, ids = truth[place].sort(descending=True, stable=True)
        torch.testing.assert_close(out.top_logprobs[place], best[:20], atol=5e-6, rtol=0)
        assert torch.equal(out.top_ids[place], ids[:20])


def test_logprobs_are_absent_unless_asked_for() -> None:
    """Red if every batch pays for them."""
    out = sample(LOGITS[None], [make_row({})])
    assert out.logprobs is out.top_ids is out.top_logprobs is None
    out = sample(LOGITS[None], [make_row({"logprobs": True})])
    assert out.logprobs is not None and out.top_ids is None and out.top_logprobs is None


# ---- Batches

PENALTIES = {"repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.2}
MIXTURE: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 0.0, **PENALTIES},
    {"temperature": 0.0, "logit_bias": {3: 2.0, 499: 1.0}},
    {},
    {"temperature": 0.7, "min_p": 0.05},
    {"temperature": 1.4, **PENALTIES},
    {"top_k": 1},
    {"top_k": 20},
    {"top_k": 50, "top_p": 0.9, "logprobs": True, "top_logprobs": 4},
    {"top_k": 300, "min_p": 0.01, **PENALTIES},
    {"top_p": 0.8},
    {"top_p": 0.99, "min_p": 0.02, "logit_bias": {0: -100.0}, "logprobs": True, "top_logprobs": 20},
    {"top_k": SELECT_UP_TO + 1, "top_p": 0.95, "temperature": 1.2},
]


@pytest.mark.parametrize("device", DEVICES)
def test_a_row_gets_the_same_alone_and_in_a_batch(device: str) -> None:
    """Red if a row's token depends on the other rows: their settings, their numbers, their place, how many they are."""
    assert {way_of(make_row(values).sampling) for values in MIXTURE} == {None, *Way}
    count, vocab, steps = ROWS_AT_ONCE * 3, 5000, 3
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(steps, count, vocab, generator=generator).mul(8).round().div(4).to(device)  # with many ties
    order = torch.randperm(count, generator=generator).tolist()

    def rows() -> list[Any]:
        lists = [np.random.default_rng(place).integers(0, vocab, (2, 30)).tolist() for place in range(count)]
        numbers = np.random.default_rng(0).random(count).tolist()
        return [
            make_row(MIXTURE[place % len(MIXTURE)], prompt, output, [7] if place % 3 else [], uniform=numbers[place])
            for place, (prompt, output) in enumerate(lists)
        ]

    together, shuffled, alone = rows(), rows(), rows()
    for step in logits:
        whole = sample(step, together)
        mixed = sample(step[order], [shuffled[place] for place in order])
        assert torch.equal(mixed.token_ids, whole.token_ids[order])
        for place in range(0, count, 5):
            single = sample(step[place : place + 1], [alone[place]])
            assert single.token_ids[0] == whole.token_ids[place], MIXTURE[place % len(MIXTURE)]
            if single.logprobs is not None and whole.logprobs is not None:
                torch.testing.assert_close(single.logprobs[0], whole.logprobs[place], atol=5e-6, rtol=0)
            if single.top_ids is not None and whole.top_ids is not None:
                assert torch.equal(single.top_ids[0], whole.top_ids[place, : single.top_ids.shape[1]])


class Operations(TorchDispatchMode):
    """The names of torch's operations, as they are called."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def operations(*values: dict[str, Any]) -> list[str]:
    logits = torch.randn(len(values), 2000, generator=torch.Generator().manual_seed(4)).bfloat16()
    rows, counts = prepared([make_row(some, [1, 2], [3]) for some in values], 2000, logits.device)
    with definitions_only(), Operations() as seen:
        sampler.sample(logits, rows, counts)
    return seen.names


def test_a_feature_costs_nothing_when_no_row_uses_it() -> None:
    """Red if a greedy batch does more than an argmax, or sorting, counting or normalising is done for nothing."""
    greedy_row = {"temperature": 0.0}
    assert operations(greedy_row, greedy_row) == ["argmax"]
    costly = {"sort", "topk", "index_fill_", "scatter_add_", "index_add_", "logsumexp", "masked_fill_", "argmax", "sum"}
    for values, paid in (
        ({}, set()),
        ({"min_p": 0.1}, {"masked_fill_"}),
        ({"top_k": 20}, {"topk"}),
        ({"top_k": 20, "min_p": 0.1}, {"topk", "sum"}),
        ({"top_p": 0.9}, {"sort"}),
        ({"repetition_penalty": 1.1}, set()),
        ({"frequency_penalty": 0.1}, set()),
        ({"logit_bias": {1: 1.0}}, {"index_add_"}),
        ({"logprobs": True}, {"logsumexp"}),
    ):
        assert costly & set(operations(values, values)) == paid, values
        assert costly & set(operations(values, greedy_row)) == paid | {"argmax"}, values


@pytest.mark.gpu
def test_the_host_does_not_wait_for_the_gpu() -> None:
    """Red if a step copies from unpinned memory and waits, reads a value back, or indexes with a mask."""
    logits = torch.randn(len(MIXTURE), 5000, device="cuda")
    rows = [make_row(values, [1, 2], [3], [4]) for values in MIXTURE]
    sample(logits, rows)  # the first call may load kernels
    torch.cuda.set_sync_debug_mode("error")
    try:
        sample(logits, rows)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("device", DEVICES)
def test_broken_logits_break_nothing_else(device: str) -> None:
    """Red if NaN logits become an index out of range (on a GPU that ends the process) or reach another row."""
    logits = torch.stack([torch.full((5,), torch.nan), LOGITS, torch.full((5,), -torch.inf)]).to(device)
    # No bound is the probability of a token, 0.5 or 0.25: there devices may differ.
    for values in ({}, {"min_p": 0.4}, {"top_k": 3, "min_p": 0.4}, {"top_p": 0.6, "min_p": 0.4}, {"temperature": 0.0}):
        tokens = sample(logits, [make_row(values, uniform=0.9) for _ in range(3)]).token_ids.tolist()
        assert all(0 <= token < 5 for token in tokens)
        assert tokens[1] == int(sample(LOGITS[None], [make_row(values, uniform=0.9)]).token_ids)
