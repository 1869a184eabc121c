"""Fields that users of vLLM and SGLang send: each changes the answer as it does there, or is refused with its equivalent."""

import json
import re
from typing import Any

import msgspec
import pytest

from family_processors import FAMILIES, make_processor, patch_spec
from server.media import data_url, image_part, png
from server.running import RunningServer
from server.test_errors import error_of
from sightline.prompt.items import make_item
from sightline.prompt.template import ChatTemplate
from sightline.server.chat_prompt import LOW_DETAIL_ROWS, sized, template_messages
from sightline.server.errors import ApiError
from sightline.server.parse import decoder_of, parse
from sightline.server.protocol import ChatRequest
from sightline.server.template_fields import template_kwargs
from sightline.spec import ProcessorSpec
from sightline.types import ImageHeader, MediaRef

ASK = [{"role": "user", "content": "Hello"}]
SCHEMA = {"type": "object", "properties": {"colour": {"enum": ["red", "blue"]}}, "required": ["colour"]}
JSON = re.compile(r'\{"colour":"(red|blue)"\}')
GBNF = 'root ::= "a" digit digit\ndigit ::= [0-9]'


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({"guided_json": SCHEMA}, JSON),
        ({"guided_json": json.dumps(SCHEMA)}, JSON),
        ({"json_schema": json.dumps(SCHEMA)}, JSON),
        ({"guided_regex": "[0-9]{3}-[a-c]"}, "[0-9]{3}-[a-c]"),
        ({"regex": "[0-9]{3}-[a-c]"}, "[0-9]{3}-[a-c]"),
        ({"guided_choice": ['yes, "it" is', "no\nway"]}, 'yes, "it" is|no\nway'),
        ({"guided_grammar": 'start: "a" /[0-9]{2}/'}, "a[0-9]{2}"),
        ({"guided_grammar": GBNF}, "a[0-9]{2}"),
        ({"ebnf": GBNF}, "a[0-9]{2}"),
        ({"structured_outputs": {"json": SCHEMA}}, JSON),
        ({"structured_outputs": {"regex": "ab?"}}, "ab?"),
        ({"structured_outputs": {"choice": ["one", "two"]}}, "one|two"),
        ({"structured_outputs": {"grammar": GBNF}}, "a[0-9]{2}"),
    ],
    ids=str,
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_forms_by_their_other_names(server: RunningServer, path: str, fields: dict[str, Any], wanted: Any) -> None:
    prompt = {"messages": ASK} if "chat" in path else {"prompt": "Hello"}
    choice = server.http.post(path, json={**prompt, "max_tokens": 40, "temperature": 0, **fields}).json()["choices"][0]
    text = choice["message"]["content"] if "chat" in path else choice["text"]
    assert re.fullmatch(wanted, text), text
    assert choice["finish_reason"] == "stop"


def test_an_answer_has_one_form(server: RunningServer) -> None:
    error = error_of(server.post(messages=ASK, regex="a", guided_choice=["b"]), 400)
    assert error["message"] == "regex and guided_choice exclude each other: an answer has one form."
    error = error_of(server.post(messages=ASK, structured_outputs={}), 400)
    assert "json, regex, choice, grammar or json_object" in error["message"]


def test_white_space_where_it_is_asked_for(server: RunningServer) -> None:
    """The model is made to like spaces. Red when JSON is not compact by default, or cannot be otherwise."""
    space = server.http.post("/tokenize", json={"prompt": " "}).json()["tokens"]
    fields: dict[str, Any] = {"messages": ASK, "max_tokens": 60, "temperature": 0, "logit_bias": {str(space[0]): 100}}

    def said(**how: bool) -> str:
        answer = server.post(**fields, structured_outputs={"json": SCHEMA, **how}).json()
        return str(answer["choices"][0]["message"]["content"])

    assert " " not in said() and " " not in said(disable_any_whitespace=True)
    assert " " in said(disable_any_whitespace=False)


def test_special_tokens_are_shown_where_asked_for(server: RunningServer) -> None:
    fields: dict[str, Any] = {"messages": ASK, "max_tokens": 2, "temperature": 0, "ignore_eos": True}
    end = server.http.post("/tokenize", json={"prompt": "<|im_end|>"}).json()["tokens"]
    fields["logit_bias"] = {str(end[0]): 100}
    hidden, shown = (server.post(**fields, skip_special_tokens=skip).json()["choices"][0] for skip in (True, False))
    assert (hidden["message"]["content"], shown["message"]["content"]) == ("", "<|im_end|><|im_end|>")


def test_ids_of_tokens(server: RunningServer) -> None:
    """Whole and streamed, of chat and of plain prompts. Red when one is missing, or told where nobody asked."""
    body: dict[str, Any] = {"max_tokens": 3, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
    prompts = server.http.post("/tokenize", json={"messages": ASK}).json()["tokens"]
    whole = server.post(messages=ASK, **body).json()
    assert whole["prompt_token_ids"] == prompts and len(whole["choices"][0]["token_ids"]) == 3
    lines = server.post(messages=ASK, stream=True, **body).text.split("\n\n")
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]
    assert chunks[0]["prompt_token_ids"] == prompts and all("prompt_token_ids" not in chunk for chunk in chunks[1:])
    streamed = [token for chunk in chunks for token in chunk["choices"][0]["token_ids"]]
    assert streamed == whole["choices"][0]["token_ids"]
    plain = server.http.post("/v1/completions", json={"prompt": ["Hello", "Bye"], **body}).json()["choices"]
    for choice, text in zip(plain, ("Hello", "Bye"), strict=True):
        wanted = server.http.post("/tokenize", json={"prompt": text}).json()["tokens"]
        assert choice["prompt_token_ids"] == wanted and len(choice["token_ids"]) == 3
    assert "token_ids" not in server.post(messages=ASK, max_tokens=1).text


def test_where_the_prompt_ends(server: RunningServer) -> None:
    """Red when a turn is begun that should not be, or the last one is closed."""

    def ids(**fields: Any) -> list[int]:
        messages = [*ASK, {"role": "assistant", "content": "Good "}]
        return list(server.http.post("/tokenize", json={"messages": messages, **fields}).json()["tokens"])

    usual, closed, going = ids(), ids(add_generation_prompt=False), ids(continue_final_message=True)
    text = [server.http.post("/detokenize", json={"tokens": tokens}).json()["prompt"] for tokens in (usual, closed, going)]
    assert text[0] == text[1] + "<|im_start|>assistant\n"
    assert text[1] == text[2] + "<|im_end|>\n" and text[2].endswith("assistant\nGood ")


def test_what_cannot_be_continued(server: RunningServer) -> None:
    error = error_of(server.post(messages=ASK, continue_final_message=True), 400)
    assert error["message"].startswith("The last message cannot be continued")
    last = {"role": "assistant", "content": "Good"}
    error = error_of(server.post(messages=[*ASK, last], continue_final_message=True, add_generation_prompt=True), 400)
    assert error["param"] == "add_generation_prompt"


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_echo_repeats_the_beginning(server: RunningServer, stream: bool) -> None:
    def texts(path: str, **body: Any) -> tuple[str, str]:
        found = []
        for echo in (False, True):
            response = server.http.post(path, json={"max_tokens": 3, "temperature": 0, "stream": stream, "echo": echo, **body})
            lines = response.text.split("\n\n") if stream else ["data: " + response.text]
            choices = [json.loads(line[6:])["choices"][0] for line in lines if line.startswith("data: {")]
            parts = [
                choice.get("text") or choice.get("delta", choice.get("message", {})).get("content") or "" for choice in choices
            ]
            found.append("".join(parts))
        return found[0], found[1]

    plain, repeated = texts("/v1/completions", prompt="The sign says")
    assert repeated == "The sign says" + plain
    messages = [*ASK, {"role": "assistant", "content": "Good "}]
    plain, repeated = texts("/v1/chat/completions", messages=messages, continue_final_message=True)
    assert repeated == "Good " + plain


def test_log_probabilities_of_prompts_are_refused(server: RunningServer) -> None:
    error = error_of(server.http.post("/v1/completions", json={"prompt": "x", "echo": True, "logprobs": 1}), 400)
    assert error["param"] == "echo" and "leave one of them out" in error["message"]
    assert error_of(server.post(messages=ASK, echo=True), 400)["param"] == "echo"
    error = error_of(server.post(messages=ASK, prompt_logprobs=1), 400)
    assert error["param"] == "prompt_logprobs" and "use logprobs and top_logprobs" in error["message"]


@pytest.mark.parametrize("family", FAMILIES)
def test_detail_low_bounds_the_tokens_of_an_image(family: str) -> None:
    """Red when it is accepted and ignored, or goes beyond what the server or the request allows."""
    url = data_url(png(1, 1024, 1024))

    def rows(processor: ProcessorSpec, **fields: Any) -> int:
        body = {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url, **fields}}]}]}
        _, (wanted,) = template_messages(msgspec.convert({**body}, ChatRequest).messages)
        ref = MediaRef("image", b"", b"", ImageHeader("PNG", 1024, 1024, 1), "picture")
        return make_item(ref, processor, options=sized(processor, wanted)).rows

    usual = make_processor(family, patch_spec(56 * 56, 2048 * 2048))
    assert rows(usual, detail="high") == rows(usual, detail="auto") == rows(usual) > 1000
    assert 100 < rows(usual, detail="low") <= LOW_DETAIL_ROWS
    large = make_processor(family, patch_spec(900 * 900, 2048 * 2048))
    assert rows(large, detail="low") > LOW_DETAIL_ROWS, "the server allows no fewer"
    assert rows(usual, detail="low", max_pixels=150 * 150) < rows(usual, detail="low")


def test_other_details_are_refused(server: RunningServer) -> None:
    part = image_part(1)
    part["image_url"]["detail"] = "sharp"
    error = error_of(server.post(messages=[{"role": "user", "content": [part]}]), 400)
    assert error["param"] == "messages[0].content[0].image_url.detail"


def test_usage_with_each_event(server: RunningServer) -> None:
    """guidellm asks for it. Red when an event has none, or tokens without a text have no event."""
    options = {"include_usage": True, "continuous_usage_stats": True}
    for path, prompt in (("/v1/chat/completions", {"messages": ASK}), ("/v1/completions", {"prompt": "Hello"})):
        body = {**prompt, "max_tokens": 5, "ignore_eos": True, "stream": True, "stream_options": options}
        lines = server.http.post(path, json=body).text.split("\n\n")
        usages = [json.loads(line.removeprefix("data: "))["usage"] for line in lines if line.startswith("data: {")]
        counts = [usage["completion_tokens"] for usage in usages]
        assert counts[0] >= 1 and counts[-1] == 5 and counts == sorted(counts)
        assert len({usage["prompt_tokens"] for usage in usages}) == 1


def test_parallel_calls_can_be_off_where_calls_are_free(server: RunningServer) -> None:
    """The model is made to write one call after another. Red when a second comes."""
    call = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
    tools = [{"type": "function", "function": {"name": "f"}}]
    expression = "(" + "".join(f"[{char}]" if char in "{}" else char for char in call) + "){3}"
    body: dict[str, Any] = {"messages": ASK, "max_tokens": 200, "temperature": 0, "tools": tools, "regex": expression}
    for parallel, count in ((True, 3), (False, 1)):
        choice = server.post(**body, parallel_tool_calls=parallel).json()["choices"][0]
        assert len(choice["message"]["tool_calls"]) == count and choice["finish_reason"] == "tool_calls", choice


THINKS = ChatTemplate("{% if enable_thinking %}<think>{% endif %}{{ messages }}")
KNOWS = ChatTemplate("{{ reasoning_effort }} {{ verbosity }} {{ messages }}")
PLAIN = ChatTemplate("{{ messages }}")


@pytest.mark.parametrize(
    ("template", "fields", "wanted"),
    [
        (KNOWS, {"reasoning_effort": "high", "verbosity": "low"}, {"reasoning_effort": "high", "verbosity": "low"}),
        (THINKS, {"reasoning_effort": "none"}, {"enable_thinking": False}),
        (THINKS, {"reasoning_effort": "high"}, "enable_thinking"),
        (PLAIN, {"reasoning_effort": "none"}, None),
        (PLAIN, {"reasoning_effort": "low"}, "leave it out"),
        (PLAIN, {"verbosity": "medium"}, None),
        (PLAIN, {"verbosity": "high"}, "system message"),
        (PLAIN, {"chat_template_kwargs": {"a": 1}, "add_generation_prompt": False}, {"a": 1, "add_generation_prompt": False}),
    ],
    ids=lambda value: str(value)[:50] if isinstance(value, dict) else None,
)
def test_what_templates_honour(template: ChatTemplate, fields: dict[str, Any], wanted: Any) -> None:
    body = msgspec.convert({"messages": ASK, **fields}, ChatRequest)
    if isinstance(wanted, str):
        with pytest.raises(ApiError, match=wanted):
            template_kwargs(template, body)
    else:
        assert template_kwargs(template, body) == wanted


def test_unknown_fields_can_be_ignored() -> None:
    """At any depth, and in lists. Red when one is refused, or when a field that is known and refused is let through."""
    lenient = decoder_of(ChatRequest, lenient=True)
    part = {"type": "image_url", "image_url": {"url": "data:", "crop": 1}, "alt": 2}
    body: dict[str, Any] = {
        "messages": [{"role": "user", "content": [part], "weight": 3}, {"role": "user", "content": "x"}],
        "tools": [{"type": "function", "function": {"name": "f", "body": 1, "parameters": {"anything": {"goes": 1}}}}],
        "tempreature": 1,
        "seed": 2**70,
    }
    clean = json.loads(json.dumps(body))
    for owner, name in (
        (clean, "tempreature"),
        (clean["messages"][0], "weight"),
        (clean["messages"][0]["content"][0], "alt"),
        (clean["messages"][0]["content"][0]["image_url"], "crop"),
        (clean["tools"][0]["function"], "body"),
    ):
        del owner[name]
    strict = parse(json.dumps(clean).encode(), decoder_of(ChatRequest, lenient=False))
    assert parse(json.dumps(body).encode(), lenient) == strict
    for wrong, message in (
        ({"best_of": 2}, "Field 'best_of' is not supported. Use n"),
        ({"max_tokens": "5"}, "Field 'max_tokens' is wrong"),
        ({"messages": [{"role": "king", "content": "x"}]}, "Field 'messages\\[0\\].role' is 'king'"),
        ({"messages": [{"role": "user"}]}, "Field 'messages\\[0\\].content' is missing"),
    ):
        with pytest.raises(ApiError, match=message):
            parse(json.dumps({"messages": ASK, **wrong}).encode(), lenient)
