"""Every figure of a run, against values worked out by hand from scripted times."""

import pytest

from sightline.bench.load.block import WIDTH, result_block, warnings
from sightline.bench.load.lag import Lag
from sightline.bench.load.request_result import RequestFailure, RequestResult
from sightline.bench.load.statistics import Spread, peak_concurrency, peak_per_second, statistics

IDLE = Lag(median=0.1, p99=1.0, max=2.0, own_p99=0.5, cpu=0.25)


def answer(start: float, chunks: list[float], **fields: object) -> RequestResult:
    """Times of chunks in seconds after the start."""
    made = RequestResult(
        start, chunk_times=[start + time for time in chunks], end=start + chunks[-1], first_text=start + chunks[0]
    )
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def told(prompt: int, vision: int, cached: int, output: int) -> dict[str, int]:
    return {"prompt_tokens": prompt, "vision_tokens": vision, "cached_tokens": cached, "completion_tokens": output}


def failed(start: float, kind: str, message: str) -> RequestResult:
    return RequestResult(
        start, end=start + 9.0, failure=RequestFailure(kind, message), prompt_tokens=5000, completion_tokens=7000
    )


# a: 100 … 102.0 s, first chunk after 0.5 s, 5 tokens in 4 chunks.  b: 101 … 102.0 s, 2 tokens.  c: 103 … 103.25 s, 1 token.
ANSWERS = [
    answer(100.0, [0.5, 1.0, 1.5, 2.0], queued=0.25, **told(1000, 900, 64, 5)),
    failed(100.5, "HTTP 429", "Slow down."),
    answer(101.0, [0.25, 1.0], **told(500, 450, 0, 2)),
    failed(101.0, "timeout", "No whole answer within 9 s."),
    failed(102.0, "HTTP 429", "Slow down, please."),
    answer(103.0, [0.25], **told(300, 270, 32, 1)),
]


def test_every_figure() -> None:
    found = statistics(ANSWERS, duration=4.0)
    assert (found.completed, found.failed) == (3, 3)
    assert (found.input_tokens, found.vision_tokens, found.text_tokens, found.cached_tokens) == (1800, 1620, 180, 96)
    assert found.output_tokens == 8 and found.output_tokens_told
    assert found.request_throughput == 0.75
    assert found.input_throughput == 450.0
    assert found.output_throughput == 2.0
    assert found.total_throughput == 452.0
    # Chunks by second after 100: [0.5], [1.0 1.25 1.5], [2.0 2.0], [3.25].
    assert found.peak_output_tokens_per_s == 3.0
    assert found.peak_concurrency == 2
    assert found.concurrency == (2.0 + 1.0 + 0.25) / 4.0
    assert found.e2el is not None and found.ttft is not None and found.tpot is not None and found.itl is not None
    assert (found.e2el.mean, found.e2el.median, found.e2el.max) == (pytest.approx(3250 / 3), 1000.0, 2000.0)
    assert (found.ttft.mean, found.ttft.median, found.ttft.max) == (pytest.approx(1000 / 3), 250.0, 500.0)
    # (2.0 - 0.5) / 4 and (1.0 - 0.25) / 1; the answer of one token has none.
    assert (found.tpot.mean, found.tpot.median, found.tpot.max) == (562.5, 562.5, 750.0)
    # 500, 500, 500 and 750 ms.
    assert (found.itl.mean, found.itl.median, found.itl.max) == (562.5, 500.0, 750.0)
    # Between the third of four values and the fourth, at 0.9 · 3 = 2.7, 0.95 · 3 = 2.85 and 0.99 · 3 = 2.97.
    assert found.itl.percentiles == {90: pytest.approx(675.0), 95: pytest.approx(712.5), 99: pytest.approx(742.5)}
    assert found.queued is not None and found.queued.mean == pytest.approx(250 / 3)
    assert found.failures == (("HTTP 429", 2, "Slow down."), ("timeout", 1, "No whole answer within 9 s."))


def test_percentiles_of_a_hundred_and_one() -> None:
    spread = Spread.of([number / 1000 for number in range(101)])
    assert spread is not None
    assert spread.percentiles == {90: pytest.approx(90.0), 95: pytest.approx(95.0), 99: pytest.approx(99.0)}
    assert spread.mean == pytest.approx(50.0) and spread.std == pytest.approx(29.154759, abs=1e-5)


# Red if a request that starts as another ends counts as overlapping it, or failures count at all.
def test_peaks() -> None:
    assert peak_concurrency([answer(0.0, [1.0]), answer(1.0, [1.0]), answer(1.5, [0.25])]) == 2
    assert peak_concurrency([]) == 0 and peak_per_second([]) == 0.0


def test_what_is_not_told_is_not_made_up() -> None:
    found = statistics([answer(0.0, [1.0, 2.0], text_chunks=2), answer(0.0, [1.0], **told(10, 5, 0, 1))], 2.0)
    assert found.input_tokens is found.vision_tokens is found.text_tokens is found.total_throughput is None
    assert found.output_tokens == 3 and not found.output_tokens_told
    block = result_block(found, IDLE, float("inf"), None)
    assert "Total input tokens:                      n/a" in block.splitlines()
    assert any("tells no usage" in line for line in warnings(found, IDLE))


def test_a_run_in_which_all_fails() -> None:
    found = statistics([failed(0.0, "HTTP 500", "Oh.")], 2.0)
    assert found.completed == 0 and found.ttft is None and found.request_throughput == 0.0
    assert "HTTP 500:" in result_block(found, IDLE, 1.0, 1)


BLOCK = """\
============ Serving Benchmark Result ============
Backend:                                 openai-chat
Traffic request rate:                    2.50
Max request concurrency:                 8
Successful requests:                     3
Failed requests:                         3
Benchmark duration (s):                  4.00
Total input tokens:                      1800
Total input text tokens:                 180
Total input vision tokens:               1620
Total cached tokens:                     96
Total generated tokens:                  8
Request throughput (req/s):              0.75
Input token throughput (tok/s):          450.00
Output token throughput (tok/s):         2.00
Peak output token throughput (tok/s):    3.00
Peak concurrent requests:                2
Total token throughput (tok/s):          452.00
Concurrency:                             0.81
----------------End-to-End Latency----------------
Mean E2E Latency (ms):                   1083.33
Median E2E Latency (ms):                 1000.00
P90 E2E Latency (ms):                    1800.00
P95 E2E Latency (ms):                    1900.00
P99 E2E Latency (ms):                    1980.00
Max E2E Latency (ms):                    2000.00
---------------Time to First Token----------------
Mean TTFT (ms):                          333.33
Median TTFT (ms):                        250.00
P90 TTFT (ms):                           450.00
P95 TTFT (ms):                           475.00
P99 TTFT (ms):                           495.00
Max TTFT (ms):                           500.00
-----Time per Output Token (excl. 1st token)------
Mean TPOT (ms):                          562.50
Median TPOT (ms):                        562.50
P90 TPOT (ms):                           712.50
P95 TPOT (ms):                           731.25
P99 TPOT (ms):                           746.25
Max TPOT (ms):                           750.00
---------------Inter-Token Latency----------------
Mean ITL (ms):                           562.50
Median ITL (ms):                         500.00
P90 ITL (ms):                            675.00
P95 ITL (ms):                            712.50
P99 ITL (ms):                            742.50
Max ITL (ms):                            750.00
---------------------Failures---------------------
HTTP 429:                                2
  Slow down.
timeout:                                 1
  No whole answer within 9 s.
-------------------This Client--------------------
Median event-loop lag (ms):              0.10
P99 event-loop lag (ms):                 1.00
P99 of its own work (ms):                0.50
Share of a core (%):                     25.00
=================================================="""


def test_the_block_as_it_is_printed() -> None:
    block = result_block(statistics(ANSWERS, 4.0), IDLE, rate=2.5, max_concurrency=8)
    assert block == BLOCK
    assert all(len(line) <= WIDTH for line in block.splitlines() if not line.startswith("Backend:"))


# Red if a line that programs look for is missing where answers have one token, or is made up where nothing was streamed.
def test_answers_of_one_token_have_no_gaps_and_are_printed_as_zero() -> None:
    one = answer(0.0, [0.25], text="yes", **told(10, 0, 0, 1))
    lines = result_block(statistics([one], 1.0, count_tokens=len), IDLE, 1.0, None, backend="sglang-oai-chat").splitlines()
    assert lines[1] == "Backend:                                 sglang-oai-chat"
    assert "Total generated tokens (retokenized):    3" in lines
    for name in ("TPOT", "ITL"):
        assert [line.split()[-1] for line in lines if f" {name} (ms)" in line] == ["0.00"] * 6
    whole = RequestResult(0.0, end=1.0, **told(10, 0, 0, 1))
    assert "TPOT" not in result_block(statistics([whole], 1.0), IDLE, 1.0, None)


# Red if a server that sends the role long before the first word looks fast and nobody is told.
def test_the_first_text_is_shown_where_it_is_later_than_the_first_chunk() -> None:
    late = answer(0.0, [0.25, 1.0], first_text=1.0, **told(10, 0, 0, 2))
    lines = result_block(statistics([late], 1.0), IDLE, 1.0, None).splitlines()
    assert "Mean TTFT (ms):                          250.00" in lines
    assert "Mean first text (ms):                    1000.00" in lines
    silent = answer(0.0, [0.5], first_text=None, **told(10, 0, 0, 1))  # one token, which has no text
    assert "first text" not in result_block(statistics([ANSWERS[0], silent], 4.0), IDLE, 1.0, None)


@pytest.mark.parametrize(
    ("lag", "said"),
    [
        (Lag(1, 9.0, 20, own_p99=7.0, cpu=0.9), "own work made it late by 7.0 ms"),
        (Lag(1, 9.0, 20, own_p99=1.0, cpu=0.1), "late by 9.0 ms at P99 (limit: 5 ms), because other programs"),
    ],
)
def test_warnings_of_a_late_client(lag: Lag, said: str) -> None:
    assert any(said in line for line in warnings(statistics(ANSWERS, 4.0), lag))
    assert warnings(statistics(ANSWERS, 4.0), IDLE) == []
