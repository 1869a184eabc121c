"""Captured steps, played on a CPU as tests/worker/test_step_graphs.py does: adapters are inputs of a graph like any other."""

from pathlib import Path

from engine.harness import plain_answer, request_of
from parity.conversations import picture
from worker.test_step_graphs import attention as attention
from worker.test_step_graphs import captured_driver


def test_answers_are_the_plain_loops(phi4: Path) -> None:
    """Red if a graph keeps the adapters of the batch that it was captured with, or of the one before."""
    requests = [
        request_of(phi4, "One ", picture(101, 99, 1), " two"),
        request_of(phi4, "Plain text, no picture at all, and somewhat longer than the others are."),
        request_of(phi4, picture(60, 40, 2), "?"),
        request_of(phi4, "Short."),
    ] * 3
    run = captured_driver(phi4, max_num_batched_tokens=40, max_num_seqs=12)
    numbers = [run.add(request, tokens=3 + place) for place, request in enumerate(requests)]
    run.run()
    for place, (number, request) in enumerate(zip(numbers, requests, strict=True)):
        assert run.tokens(number) == plain_answer(phi4, request, 3 + place)
    graphs = run.engine.executor.worker.step_graphs
    assert graphs is not None and len(graphs) >= 4, "several buckets were used"
