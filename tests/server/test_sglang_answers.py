"""What answers have beyond OpenAI's API because clients of SGLang read it, through the openai client, which must not mind."""

from typing import Any

import msgspec
import pytest

from server.running import MODEL, RunningServer
from server.test_openai_client import QUESTION, timings
from sightline.engine.messages import Finish, UpdateHead
from sightline.server.call import Call, PromptFacts
from sightline.server.chat_reply import ChatReply
from sightline.server.reply import ReplyOptions
from sightline.stream.answer_parts import AnswerParser
from sightline.stream.stop_strings import StopStrings

TIMED = {"return_timings": True}


def test_what_ended_an_answer(server: RunningServer) -> None:
    """Red when the token or the stop string is not told, in a whole answer, a stream or a plain completion, or when an answer
    that was cut names one."""
    end = server.http.post("/tokenize", json={"prompt": "<|im_end|>"}).json()["tokens"][0]
    by_token = server.chat(QUESTION, max_tokens=60, logit_bias={str(end): 100}).choices[0]
    assert (by_token.finish_reason, by_token.model_extra["matched_stop"]) == ("stop", end)
    free = server.chat(QUESTION, max_tokens=8, logit_bias={str(end): -100}).choices[0]
    assert (free.finish_reason, free.model_extra["matched_stop"]) == ("length", None)
    stop = free.message.content[1:3]
    fields: dict[str, Any] = {"max_tokens": 8, "logit_bias": {str(end): -100}, "stop": ["never said", stop]}
    assert server.chat(QUESTION, **fields).choices[0].model_extra["matched_stop"] == stop
    *others, last = server.chat(QUESTION, stream=True, **fields)
    assert last.choices[0].model_extra["matched_stop"] == stop
    assert not any("matched_stop" in chunk.choices[0].model_extra for chunk in others)
    plain = {"prompt": "The sign", "max_tokens": 4}
    cut = server.post("/v1/completions", **plain, ignore_eos=True).json()["choices"][0]
    ended = server.post("/v1/completions", **plain, logit_bias={str(end): 100}).json()["choices"][0]
    assert (cut["matched_stop"], ended["matched_stop"]) == (None, end)


def test_of_several_stop_strings_the_first_is_told() -> None:
    """Red when the last one that was looked for is told, rather than the one that the text was cut before."""
    stops = StopStrings(["cd", "bc", "zz"])
    assert stops.feed("a") == "a" and stops.matched is None
    assert stops.feed("bcd") == "" and stops.matched == "bc"


def test_latencies_in_seconds(server: RunningServer) -> None:
    """Red when they are missing or in milliseconds, or differ from timings_ms."""
    *_, streamed = server.chat(QUESTION, stream=True, extra_body=TIMED)
    for told in (timings(server.chat(QUESTION, extra_body=TIMED)), timings(streamed)):
        for name, stage in (("e2e_latency", "e2e"), ("ttft_latency", "ttft"), ("queue_latency", "queue")):
            assert told[name] == pytest.approx(told["timings_ms"][stage] / 1000, abs=1e-5)
        assert told["e2e_latency"] > 0 and told["weight_version"] == "default"


def reply(*updates: tuple[str, int], starts_in_reasoning: bool = False) -> dict[str, Any]:
    """The answer of a model that says so, each text in so many tokens."""
    call = Call("/v1/chat/completions", "id", prompts=(PromptFacts(3, 1, 0, 0, 0, 0, 0),))
    options = ReplyOptions("m", None, False, False, False, None)  # type: ignore[arg-type]
    made = ChatReply(call, options, lambda: AnswerParser(False, True, starts_in_reasoning), logprobs=False)
    for place, (text, tokens) in enumerate(updates):
        end = Finish("stop", 3, {}) if place == len(updates) - 1 else None
        update = UpdateHead(1, 0, text, (7,) * tokens, finish=end)
        call.note(0, update)
        made.take([(0, update)])
    return dict(msgspec.json.decode(made.body()))


@pytest.mark.parametrize(
    ("updates", "inside", "thoughts"),
    [
        ([("<think>", 1), ("\n", 1), ("Hm", 1), ("\n", 1), ("</think>", 1), ("\n\nYes", 2)], False, 5),
        ([("Hm", 2), ("</think>", 1), ("Yes", 2)], True, 3),
        ([("Hm", 2), (" so", 2)], True, 4),
        ([("Yes", 2), ("<think>", 1)], False, 0),
        ([("  ", 1), ("Yes", 2)], False, 0),
    ],
    ids=["own tag", "tag of the template", "cut", "none", "spaces"],
)
def test_tokens_of_thoughts(updates: list[tuple[str, int]], inside: bool, thoughts: int) -> None:
    """Red when tokens of the answer proper are counted, or those between the tags and the tags themselves are not."""
    usage = reply(*updates, starts_in_reasoning=inside)["usage"]
    assert usage["completion_tokens_details"] == {"reasoning_tokens": thoughts} and usage["reasoning_tokens"] == thoughts
    assert usage["completion_tokens"] == sum(tokens for _, tokens in updates)


def test_auto_is_the_model_that_is_served(server: RunningServer) -> None:
    """Red when "auto" is refused, or answered by another name than the client gave."""
    answer = server.chat("Hello", model="auto")
    assert answer.model == "auto" and answer.usage.completion_tokens_details.reasoning_tokens == 0


def test_what_is_served_and_how(server: RunningServer) -> None:
    """Red when a path of the disk or a key is told, or a setting is not that of the engine."""
    info = server.http.get("/get_model_info").json()
    assert (info["model_path"], info["tokenizer_path"], info["is_generation"]) == (MODEL, MODEL, True)
    assert info["has_image_understanding"] and info["has_video_understanding"] and info["weight_version"] == "default"
    response = server.http.get("/server_info")
    told = response.json()
    assert (told["model_path"], told["served_model_name"]) == (MODEL, [MODEL, "other-name"])
    assert told["max_model_len"] == server.http.get("/v1/models").json()["data"][0]["max_model_len"]
    state = told["internal_states"][0]  # where sglang.bench_serving looks, and fails if it is not there
    assert told["engine"]["max_num_seqs"] == 256 and state["status"] == "ready" and state["device"] and state["dtype"]
    assert state["tilings"] is None  # on a CPU nothing is chosen
    assert "the-admin-key" not in response.text and "/" not in response.text
    assert server.http.get("/get_server_info").json() == told
