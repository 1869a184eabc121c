"""Our side of the comparison: the same conversations through the package, and the checks that several files make."""

from contextlib import ExitStack
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch

from conftest import FAMILIES as FAMILIES
from oracle import Oracle, OracleEmbeddings, oracle
from parity import routing
from parity.conversations import Messages
from plain_loop import SingleSequence, encode_items
from sightline.llm import LLM
from sightline.types import Request

DEVICES = ("cpu", pytest.param("cuda", marks=pytest.mark.gpu))
TOLERANCE = 1e-4


class Subject:
    def __init__(self, folder: Path, device: str, dtype: torch.dtype) -> None:
        dtype_name = str(dtype).removeprefix("torch.")
        # Small caches: many of these live side by side, and a GPU's default is most of its memory.
        self.llm = LLM(folder, device=device, dtype=dtype_name, kv_cache_gb=0.1, embedding_cache_gb=0.02)

    def request(self, messages: list[dict[str, Any]]) -> Request:
        return self.request_of(self.llm, messages)

    @staticmethod
    def request_of(llm: LLM, messages: list[dict[str, Any]]) -> Request:
        return llm.prompts.chat(messages)

    def rows(self, request: Request) -> torch.Tensor | None:
        return encode_items(self.llm.model, request, self.llm.processor)

    def logits(self, request: Request, continuation: list[int] | None = None) -> torch.Tensor:
        """[tokens, vocab]: after each prompt token, then after each token of the continuation, fed one at a time."""
        continuation = continuation or []
        sequence = SingleSequence(self.llm.model, request, len(request) + len(continuation), page_size=16)
        parts = [sequence.prefill(self.rows(request), all_logits=True)]
        parts += [sequence.decode(token) for token in continuation]
        return torch.cat(parts)

    def greedy(self, request: Request, count: int) -> list[int]:
        sequence = SingleSequence(self.llm.model, request, len(request) + count, page_size=16)
        logits = sequence.prefill(self.rows(request))
        tokens: list[int] = []
        while len(tokens) < count:
            tokens.append(int(logits[0].argmax()))
            logits = sequence.decode(tokens[-1])
        return tokens


@lru_cache(maxsize=12)
def subject(folder: Path, device: str = "cpu", dtype: torch.dtype = torch.float32) -> Subject:
    return Subject(folder, device, dtype)


def both(folders: dict[str, Path], family: str, device: str, dtype: torch.dtype = torch.float32) -> tuple[Oracle, Subject]:
    return oracle(folders[family], family, device, dtype), subject(folders[family], device, dtype)


def check_ids_and_positions(reference: Oracle, ours: Subject, messages: Messages) -> tuple[dict[str, torch.Tensor], Request]:
    """Returns transformers' inputs and our request for the messages."""
    inputs, request = reference.inputs(messages), ours.request(messages)
    assert request.token_ids.tolist() == inputs["input_ids"][0].tolist()
    positions, delta = reference.positions(inputs)
    assert torch.equal(torch.from_numpy(request.positions).long(), positions)
    assert request.position_delta == delta
    return inputs, request


def check_rows(reference: Oracle, ours: Subject, inputs: dict[str, torch.Tensor], request: Request) -> None:
    """Tower output and deepstack features."""
    rows = ours.rows(request)
    if "pixel_values" not in inputs:
        assert rows is None
        return
    expected = reference.rows(inputs["pixel_values"], inputs["image_grid_thw"])
    assert rows is not None
    torch.testing.assert_close(rows, expected.joined, atol=TOLERANCE, rtol=0)


def check_rows_in_bfloat16(exact: Oracle, rounded: Oracle, ours: Subject, messages: Messages) -> None:
    """Against float32, our rows in bfloat16 err at most 1.5 times as much as transformers' own."""
    inputs = exact.inputs(messages)
    truth, theirs = (
        reference.rows(inputs["pixel_values"], inputs["image_grid_thw"]).joined.float() for reference in (exact, rounded)
    )
    mine = ours.rows(ours.request(messages))
    assert mine is not None and mine.shape == truth.shape
    their_error, my_error = ((rows.float() - truth).square().mean().sqrt() for rows in (theirs, mine))
    assert my_error <= 1.5 * their_error, f"ours {my_error:.5f}, transformers' {their_error:.5f}"


def check_bfloat16(
    exact: Oracle,
    rounded: Oracle,
    ours: Subject,
    request: Request,
    exact_rows: OracleEmbeddings | None,
    rounded_rows: OracleEmbeddings | None,
    continuation: list[int],
) -> int:
    """Against float32, our bfloat16 logits err at most 1.5 times as much as transformers' own, and choose the same tokens.

    `exact` is transformers in float32, `rounded` in bfloat16, with their rows of the request's items. Logits are teacher-forced
    on a continuation. Where float32's best two are closer than twice transformers' own bfloat16 error, either may win: such
    ties are counted and returned, everywhere else the best token must be float32's. Tokens go to the experts of float32.
    """
    with routing.recorded(routing.gates(exact), 2) as calls:
        truth = exact.logits_for_request(request, exact_rows, continuation)
    wanted, experts = routing.joined(calls), ours.llm.spec.text.experts
    with ExitStack() as stack:
        if experts is not None:
            stack.enter_context(routing.forced_theirs(rounded, experts, wanted))
            stack.enter_context(routing.forced_ours(ours.llm.model, wanted))
        theirs = rounded.logits_for_request(request, rounded_rows, continuation).float()
        mine = ours.logits(request, continuation).float()
    their_error, my_error = ((x - truth).square().mean().sqrt() for x in (theirs, mine))
    assert my_error <= 1.5 * their_error, f"ours {my_error:.5f}, transformers' {their_error:.5f}"
    answer = slice(len(request) - 1, -1)
    best = truth[answer].topk(2, dim=1).values
    tie = best[:, 0] - best[:, 1] < 2 * (theirs - truth)[answer].abs().max()
    differs = mine[answer].argmax(1) != truth[answer].argmax(1)
    assert not (differs & ~tie).any()
    assert tie.float().mean() < 0.75, "ties nearly everywhere: the comparison says nothing"
    return int(tie.sum())
