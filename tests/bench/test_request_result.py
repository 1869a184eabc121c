"""What is read out of answers, from the bytes and the times at which they came."""

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.stub import chunk, event, usage
from sightline.bench.load.request_result import RequestResult, StreamReader, read_refusal, read_whole

ROLE = chunk({"role": "assistant", "content": ""})
END = event(b"[DONE]")


def read(*pieces: tuple[float, bytes], start: float = 10.0) -> RequestResult:
    answer = RequestResult(start)
    reader = StreamReader(answer)
    for stamp, data in pieces:
        reader.feed(stamp, data)
    reader.finish(pieces[-1][0] if pieces else start)
    return answer


# Red if the role-only chunk does not count as the first token, the chunk with usage counts as one, or text is lost.
def test_times_and_counts_of_a_usual_stream() -> None:
    answer = read(
        (10.5, ROLE),
        (10.75, chunk({"content": "Hel"})),
        (11.0, chunk({"content": "lo"})),
        (11.25, chunk({}, "stop")),
        (12.0, chunk(None, usage=usage(100, 3, cached=64, image=40))),
        (12.5, END),
    )
    assert answer.failure is None
    assert answer.ttft == 0.5 and answer.first_text == 10.75
    assert answer.itls == [0.25, 0.25, 0.25]
    assert answer.latency == 1.25
    assert answer.text == "Hello" and answer.finish_reason == "stop"
    assert (answer.prompt_tokens, answer.output_tokens, answer.cached_tokens, answer.vision_tokens) == (100, 3, 64, 40)


# Red if several events in one read get different times, or only one of them is seen.
def test_events_that_come_together_have_one_time() -> None:
    answer = read((10.5, ROLE + chunk({"content": "a"})), (11.0, chunk({"content": "b"}, "length") + END))
    assert answer.chunk_times == [10.5, 10.5, 11.0]
    assert answer.text == "ab"


STREAM = ROLE + b": ping\n\n" + chunk({"content": "Grüße 🙂"}) + chunk({"content": " x"}, "stop") + END


# Red if an event that is cut anywhere, even inside a character, is read differently or gets the time of its first part.
@given(st.lists(st.integers(1, len(STREAM) - 1), max_size=12))
def test_any_cut_of_the_bytes_reads_the_same(cuts: list[int]) -> None:
    places = [0, *sorted(set(cuts)), len(STREAM)]
    pieces = [(10.0 + end, STREAM[begin:end]) for begin, end in itertools.pairwise(places)]
    answer = read(*pieces)
    assert answer.failure is None and answer.text == "Grüße 🙂 x"
    ends = [i + 2 for i in range(len(STREAM)) if STREAM[i : i + 2] == b"\n\n"]
    wanted = [next(10.0 + place for place in places if place >= ends[number] - 1) for number in (0, 2, 3)]
    assert answer.chunk_times == wanted


def test_crlf_between_events() -> None:
    answer = read((11.0, b"".join(part.replace(b"\n", b"\r\n") for part in (ROLE, chunk({"content": "x"}, "stop"), END))))
    assert answer.failure is None and answer.text == "x"


# Red if reasoning or a call does not count as text that has come, or is mixed into the answer.
@pytest.mark.parametrize("delta", [{"reasoning_content": "hm"}, {"reasoning": "hm"}, {"tool_calls": [{"index": 0}]}])
def test_reasoning_and_calls_are_text_that_came(delta: dict[str, object]) -> None:
    answer = read((10.5, ROLE), (11.0, chunk(delta)), (12.0, chunk({"content": "yes"}, "stop")), (12.0, END))
    assert answer.first_text == 11.0 and answer.text == "yes" and answer.text_chunks == 2


# Red if tokens are not counted by chunks where the server tells no usage, or the role-only chunk counts as one.
def test_without_usage_chunks_with_text_are_counted() -> None:
    answer = read((10.5, ROLE), (11.0, chunk({"content": "a"})), (12.0, chunk({"content": "b"}, "stop")), (12.0, END))
    assert answer.completion_tokens is None and answer.output_tokens == 2
    assert answer.prompt_tokens is None and answer.vision_tokens is None


@pytest.mark.parametrize(
    ("pieces", "kind", "said"),
    [
        ([ROLE, event({"error": {"message": "out of memory"}})], "error in the stream", "out of memory"),
        ([ROLE, b"data: {oops}\n\n", END], "unreadable chunk", "{oops}"),
        ([ROLE, chunk({"content": "a"})], "broken stream", "without [DONE]"),
        ([chunk(None, usage=usage(1, 1)), END], "empty stream", "without a chunk"),
        ([b""], "empty stream", "without a chunk"),
    ],
)
def test_streams_that_fail(pieces: list[bytes], kind: str, said: str) -> None:
    answer = read(*((10.0 + number, data) for number, data in enumerate(pieces, 1)))
    assert answer.failure is not None and answer.failure.kind == kind and said in answer.failure.message


# A server that ends with a reason but without [DONE] has answered all the same.
def test_a_reason_to_finish_is_an_end() -> None:
    assert read((10.5, ROLE), (11.0, chunk({"content": "a"}, "stop"))).failure is None


def test_metadata_of_the_server() -> None:
    answer = read((11.0, chunk({"content": "a"}, "stop", metadata={"timings_ms": {"encode": 4.5}})), (11.0, END))
    assert answer.metadata["timings_ms"]["encode"] == 4.5


def test_whole_answers() -> None:
    answer = RequestResult(10.0)
    choice = {"message": {"role": "assistant", "content": "seven"}, "finish_reason": "stop"}
    read_whole(answer, 11.5, json.dumps({"choices": [choice], "usage": usage(9, 4)}).encode())
    assert answer.failure is None and answer.text == "seven" and answer.latency == 1.5
    assert answer.ttft is None and answer.itls == [] and answer.output_tokens == 4
    for data in (b"", b"<html>", b'{"choices": []}', b'{"error": "busy"}'):
        answer = RequestResult(10.0)
        read_whole(answer, 11.5, data)
        assert answer.failure is not None


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b'{"error": {"message": "Too long.", "type": "x"}}', "Too long."),
        (b'{"message": "Too long."}', "Too long."),
        (b'{"detail": [{"msg": "Too long."}]}', "Too long."),
        (b"Bad Gateway", "Bad Gateway"),
        (b"\xff" * 900, "…"),
    ],
)
def test_refusals_in_many_shapes(data: bytes, said: str) -> None:
    answer = RequestResult(10.0)
    read_refusal(answer, 400, 10.25, data)
    assert answer.failure is not None and answer.failure.kind == "HTTP 400" and said in answer.failure.message
    assert len(answer.failure.message) < 300
