"""The official openai client against a running server, as its users call it."""

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest

from clips import make_clip
from server.media import data_url, image_part, text_part
from server.running import MODEL, RunningServer
from sightline import LLM, SamplingParams

ZOOM = {
    "type": "function",
    "function": {
        "name": "zoom",
        "description": "Look closer.",
        "parameters": {
            "type": "object",
            "properties": {"x": {"enum": [1, 2, 3]}},
            "required": ["x"],
            "additionalProperties": False,
        },
    },
}
QUESTION = [image_part(1), text_part("What does the sign say?")]


def timings(answer: Any) -> dict[str, Any]:
    return dict(answer.model_extra["metadata"] if "metadata" in (answer.model_extra or {}) else answer.metadata)


@pytest.fixture(scope="module")
def library() -> Any:
    with LLM(device="cpu") as llm:
        yield llm


@pytest.mark.parametrize(
    "content",
    ["Hello", QUESTION, [image_part(1), image_part(2), text_part("Which is darker?")]],
    ids=["text", "image", "two images"],
)
def test_answers_are_those_of_the_library(server: RunningServer, library: LLM, content: Any) -> None:
    """Red when the server builds another prompt than the library, or cuts or joins the text wrongly."""
    wanted = library.chat([{"role": "user", "content": content}], SamplingParams(max_tokens=12, temperature=0))
    whole = server.chat(content, max_tokens=12)
    chunks = list(server.chat(content, max_tokens=12, stream=True))
    assert whole.choices[0].message.content == wanted.text
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == wanted.text
    assert whole.choices[0].finish_reason == chunks[-1].choices[0].finish_reason == wanted.finish_reason
    assert whole.usage.prompt_tokens == wanted.prompt_tokens
    assert whole.usage.completion_tokens == len(wanted.token_ids)


def test_a_video_is_answered(server: RunningServer, library: LLM) -> None:
    url = data_url(make_clip(8), "video/x-msvideo")
    content = [{"type": "video_url", "video_url": {"url": url}}, text_part("What is seen?")]
    wanted = library.chat([{"role": "user", "content": content}], SamplingParams(max_tokens=8, temperature=0))
    answer = server.chat(content)
    assert answer.choices[0].message.content == wanted.text
    details = answer.usage.model_dump()["prompt_tokens_details"]
    assert details["video_tokens"] > 0 and details["image_tokens"] == 0


def test_shape_of_a_stream(server: RunningServer) -> None:
    """The role comes once and first, the reason to end once and last, and no chunk has usage that nobody asked for."""
    chunks = list(server.chat(QUESTION, max_tokens=5, stream=True, extra_body={"ignore_eos": True}))
    assert [chunk.choices[0].delta.role for chunk in chunks] == ["assistant"] + [None] * (len(chunks) - 1)
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None] * (len(chunks) - 1) + ["length"]
    assert all(chunk.choices and chunk.usage is None for chunk in chunks)
    assert len({chunk.id for chunk in chunks}) == 1 and chunks[0].model == MODEL


def test_usage_of_a_stream_comes_last_and_without_choices(server: RunningServer) -> None:
    options = {"include_usage": True}
    *chunks, last = list(server.chat(QUESTION, max_tokens=5, stream=True, stream_options=options))
    assert last.choices == [] and all(chunk.choices and chunk.usage is None for chunk in chunks)
    assert last.usage == server.chat(QUESTION, max_tokens=5).usage.model_copy(
        update={"prompt_tokens_details": last.usage.prompt_tokens_details}
    )


def test_usage_tells_image_tokens_and_cached_ones(server: RunningServer) -> None:
    content = [image_part(77), text_part("A question that no other test asks, long enough to fill some pages of the cache.")]
    first, second = server.chat(content), server.chat(content)
    shown = [answer.usage.model_dump()["prompt_tokens_details"] for answer in (first, second)]
    assert shown[0]["image_tokens"] == shown[1]["image_tokens"] > 0
    assert shown[1]["cached_tokens"] > shown[0]["cached_tokens"]
    assert first.usage.total_tokens == first.usage.prompt_tokens + first.usage.completion_tokens


def test_timings_are_told_where_asked_for(server: RunningServer) -> None:
    content = [image_part(78), text_part("What is it?")]
    told = timings(server.chat(content, extra_body={"return_timings": True}))
    spent = told["timings_ms"]
    for stage in ("e2e", "ttft", "queue", "fetch", "header", "prompt", "decode", "preprocess", "encode", "prefill"):
        assert spent[stage] >= 0, stage
    assert spent["e2e"] >= spent["ttft"] > spent["prefill"] > 0 and spent["decode"] > 0
    assert (told["images"], told["videos"], told["encoded_items"]) == (1, 0, 1)
    *_, last = server.chat(content, stream=True, extra_body={"return_timings": True})
    assert timings(last)["encoded_items"] == 0
    assert "metadata" not in server.post(model=MODEL, messages=[{"role": "user", "content": "x"}], max_tokens=1).json()


def test_several_answers(server: RunningServer) -> None:
    fields: dict[str, Any] = {"n": 4, "temperature": 1.5, "seed": 5, "max_tokens": 6, "extra_body": {"ignore_eos": True}}
    whole = server.chat("Tell me.", **fields)
    assert [choice.index for choice in whole.choices] == [0, 1, 2, 3]
    assert len({choice.message.content for choice in whole.choices}) > 1
    assert whole.usage.completion_tokens == 4 * 6
    texts = ["", "", "", ""]
    for chunk in server.chat("Tell me.", stream=True, **fields):
        texts[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert texts == [choice.message.content for choice in whole.choices], "the same seed gives the same answers"


def test_seeds_differ(server: RunningServer) -> None:
    def ask(seed: int) -> str:
        answer = server.chat("Tell me.", temperature=2.0, seed=seed, max_tokens=12, extra_body={"ignore_eos": True})
        return str(answer.choices[0].message.content)

    assert ask(1) == ask(1)
    assert len({ask(seed) for seed in range(4)}) > 1


def test_log_probabilities(server: RunningServer) -> None:
    fields: dict[str, Any] = {"max_tokens": 4, "logprobs": True, "top_logprobs": 3, "extra_body": {"ignore_eos": True}}
    shown = server.chat(QUESTION, **fields).choices[0].logprobs.content
    assert len(shown) == 4
    for entry in shown:
        assert len(entry.top_logprobs) == 3
        assert entry.logprob == entry.top_logprobs[0].logprob, "greedy takes the likeliest"
        assert entry.token.encode() == bytes(entry.bytes)
    streamed = [
        entry for chunk in server.chat(QUESTION, stream=True, **fields) for entry in chunk.choices[0].logprobs.content or ()
    ]
    assert [entry.token for entry in streamed] == [entry.token for entry in shown]


def test_stop_strings_end_an_answer(server: RunningServer) -> None:
    end = server.http.post("/tokenize", json={"prompt": "<|im_end|>"}).json()["tokens"]
    bias = {str(end[0]): -100}
    free = server.chat(QUESTION, max_tokens=8, logit_bias=bias).choices[0].message.content
    assert len(free) > 2
    stopped = server.chat(QUESTION, max_tokens=8, logit_bias=bias, stop=[free[1:3]]).choices[0]
    assert stopped.message.content == free[: free.index(free[1:3])]
    assert stopped.finish_reason == "stop"


def test_biases_and_penalties_reach_the_sampler(server: RunningServer) -> None:
    token = server.http.post("/tokenize", json={"prompt": "7"}).json()["tokens"]
    assert len(token) == 1
    answer = server.chat(QUESTION, max_tokens=3, logit_bias={str(token[0]): 100})
    assert answer.choices[0].message.content == "777"
    with_penalty = server.chat(
        QUESTION, max_tokens=6, frequency_penalty=2.0, presence_penalty=2.0, extra_body={"ignore_eos": True}
    )
    without = server.chat(QUESTION, max_tokens=6, extra_body={"ignore_eos": True})
    assert with_penalty.choices[0].message.content != without.choices[0].message.content


def without_space(server: RunningServer) -> dict[str, int]:
    """JSON may have white space anywhere, and a model that was never taught JSON may write nothing else."""
    ids = [server.http.post("/tokenize", json={"prompt": text}).json()["tokens"] for text in (" ", "\n", "\t", "\r")]
    return {str(token): -100 for tokens in ids for token in tokens}


def test_answers_in_the_form_of_a_schema(server: RunningServer) -> None:
    schema = {"type": "object", "properties": {"colour": {"enum": ["red", "blue"]}}, "required": ["colour"]}
    schema["additionalProperties"] = False
    form = {"type": "json_schema", "json_schema": {"name": "seen", "schema": schema, "strict": True}}
    answer = server.chat(QUESTION, max_tokens=60, response_format=form, logit_bias=without_space(server)).choices[0]
    assert json.loads(answer.message.content)["colour"] in ("red", "blue")
    assert answer.finish_reason == "stop"


def test_answers_in_the_form_of_an_expression(server: RunningServer) -> None:
    answer = server.chat(QUESTION, max_tokens=20, extra_body={"response_format": {"type": "regex", "regex": "[0-9]{3}-[a-c]"}})
    text = answer.choices[0].message.content
    assert text[:3].isdigit() and text[3] == "-" and text[4:] in "abc"


def test_a_plain_text_format_changes_nothing(server: RunningServer) -> None:
    answer = server.chat(QUESTION, response_format={"type": "text"})
    assert answer.choices[0].message.content == server.chat(QUESTION).choices[0].message.content


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "zoom"}}], ids=["required", "named"])
def test_forced_tool_calls(server: RunningServer, choice: Any) -> None:
    answer = server.chat("Look at x = 2.", max_tokens=200, tools=[ZOOM], tool_choice=choice, parallel_tool_calls=False).choices[
        0
    ]
    assert answer.finish_reason == "tool_calls"
    (call,) = answer.message.tool_calls
    assert call.type == "function" and call.function.name == "zoom" and call.id
    assert json.loads(call.function.arguments)["x"] in (1, 2, 3)
    pieces = [
        piece
        for chunk in server.chat(
            "Look at x = 2.", max_tokens=200, tools=[ZOOM], tool_choice=choice, parallel_tool_calls=False, stream=True
        )
        for piece in chunk.choices[0].delta.tool_calls or ()
    ]
    assert pieces[0].function.name == "zoom" and pieces[0].id and pieces[0].index == 0
    assert "".join(piece.function.arguments or "" for piece in pieces) == call.function.arguments


def test_a_conversation_with_tool_calls_is_continued(server: RunningServer) -> None:
    called = {"id": "a", "type": "function", "function": {"name": "zoom", "arguments": '{"x": 2}'}}
    messages = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": QUESTION},
        {"role": "assistant", "content": None, "tool_calls": [called]},
        {"role": "tool", "tool_call_id": "a", "content": "nothing there"},
    ]
    answer = server.openai.chat.completions.create(model=MODEL, messages=messages, tools=[ZOOM], max_tokens=4)  # type: ignore[arg-type]
    assert answer.usage is not None and answer.usage.prompt_tokens > 100


def test_plain_completions(server: RunningServer) -> None:
    complete = server.openai.completions.create
    fields: dict[str, Any] = {"model": MODEL, "max_tokens": 3, "temperature": 0, "extra_body": {"ignore_eos": True}}
    one = complete(prompt="The sign says", **fields)
    ids = server.http.post("/tokenize", json={"prompt": "The sign says"}).json()["tokens"]
    assert complete(prompt=ids, **fields).choices[0].text == one.choices[0].text
    several = complete(prompt=["The sign says", "Something else"], n=2, **fields)
    assert [choice.index for choice in several.choices] == [0, 1, 2, 3]
    assert several.choices[0].text == several.choices[1].text == one.choices[0].text
    assert several.usage.completion_tokens == 12 and one.usage.prompt_tokens == len(ids)
    streamed = list(complete(prompt="The sign says", stream=True, stream_options={"include_usage": True}, **fields))
    assert "".join(chunk.choices[0].text for chunk in streamed[:-1]) == one.choices[0].text
    assert streamed[-1].usage == one.usage.model_copy(
        update={"prompt_tokens_details": streamed[-1].usage.prompt_tokens_details}
    )


def test_log_probabilities_of_plain_completions(server: RunningServer) -> None:
    choice = server.openai.completions.create(
        model=MODEL, prompt="The sign", max_tokens=4, temperature=0, logprobs=2, extra_body={"ignore_eos": True}
    ).choices[0]
    shown = choice.logprobs
    assert shown is not None and shown.tokens is not None and shown.top_logprobs is not None
    assert len(shown.tokens) == len(shown.token_logprobs or ()) == len(shown.text_offset or ()) == 4
    assert all(token in top for token, top in zip(shown.tokens, shown.top_logprobs, strict=True))


def test_models(server: RunningServer) -> None:
    assert [model.id for model in server.openai.models.list().data] == [MODEL, "other-name"]
    assert server.openai.models.retrieve("other-name").id == "other-name"
    with pytest.raises(openai.NotFoundError):
        server.openai.models.retrieve("absent")
    assert server.chat(model="other-name").model == "other-name"


def test_a_model_may_be_named_by_its_folder(server: RunningServer) -> None:
    """As `sglang.bench_serving` does."""
    root = server.openai.models.list().data[0].model_extra["root"]  # type: ignore[index]
    assert server.chat(model=root).choices


def test_fields_that_cannot_change_an_answer_are_accepted(server: RunningServer) -> None:
    part = image_part(1)
    part["image_url"]["detail"] = "low"
    body = {
        "user": "me",
        "metadata": {"a": "b"},
        "store": True,
        "service_tier": "auto",
        "parallel_tool_calls": True,
        "tools": None,
        "logit_bias": None,
        "audio": None,
    }
    response = server.post(
        messages=[{"role": "user", "content": [part, text_part("What?")], "name": "me"}], max_tokens=1, **body
    )
    assert response.status_code == 200, response.text


def test_sizes_of_images_per_request(server: RunningServer) -> None:
    """mm_processor_kwargs for all images, fields of image_url for one."""

    def tokens(part: dict[str, Any], **fields: Any) -> int:
        answer = server.chat([part, text_part("What?")], max_tokens=1, extra_body=fields)
        return int(answer.usage.model_dump()["prompt_tokens_details"]["image_tokens"])

    usual = tokens(image_part(1))
    larger = tokens(image_part(1), mm_processor_kwargs={"min_pixels": 4 * 96 * 64})
    part = image_part(1)
    part["image_url"]["min_pixels"] = 4 * 96 * 64
    assert larger > usual and tokens(part) == larger


def test_many_at_once(server: RunningServer) -> None:
    """Each gets its own answer: red when news reach the wrong request."""

    def ask(number: int) -> tuple[str, str]:
        content = [image_part(200 + number % 5), text_part(f"Question {number}: what is it?")]
        streamed = server.chat(content, stream=True, max_tokens=10, extra_body={"ignore_eos": True})
        text = "".join(chunk.choices[0].delta.content or "" for chunk in streamed)
        return text, server.chat(content, max_tokens=10, extra_body={"ignore_eos": True}).choices[0].message.content

    with ThreadPoolExecutor(16) as pool:
        pairs = list(pool.map(ask, range(32)))
    assert all(streamed == whole for streamed, whole in pairs)
    assert server.until_idle()["running"] == 0


def test_round_eight_of_a_conversation_decodes_one_image(server: RunningServer) -> None:
    """The measure of the whole idea, counted through HTTP."""
    messages: list[Any] = []
    decoded = []
    for round_number in range(8):
        before = server.stats()
        messages.append({"role": "user", "content": [image_part(300 + round_number), text_part("And this?")]})
        answer = server.openai.chat.completions.create(
            model=MODEL, messages=messages, max_tokens=4, temperature=0, extra_body={"return_timings": True}
        )
        messages.append({"role": "assistant", "content": answer.choices[0].message.content})
        after = server.stats()
        decoded.append(after["items_decoded"] - before["items_decoded"])
        told = timings(answer)
        assert (told["images"], told["encoded_items"]) == (round_number + 1, 1)
    assert decoded == [1] * 8
