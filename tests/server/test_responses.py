"""/v1/responses, by the openai client and event by event."""

import json
from typing import Any

import openai
import pytest
from PIL import Image

from media.pdfs import no_pages, picture_pdf
from server.media import data_url, png, text_part
from server.running import MODEL, RunningServer
from server.test_files_and_frames import DEMO, file_part
from server.test_openai_client import image_part

ZOOM = {
    "type": "function",
    "name": "zoom",
    "description": "Look closer.",
    "parameters": {"type": "object", "properties": {"x": {"enum": [1, 2, 3]}}, "required": ["x"]},
    "strict": True,
}
IMAGE = {"type": "input_image", "image_url": data_url(png(1)), "detail": "auto"}
QUESTION = {"type": "input_text", "text": "What does the sign say?"}


def ask(server: RunningServer, input: Any = "Hello", **fields: Any) -> Any:
    fields = {"max_output_tokens": 8, "temperature": 0, **fields}
    return server.openai.responses.create(model=MODEL, input=input, **fields)


def test_answers_are_those_of_chat(server: RunningServer) -> None:
    """Red when the translation builds another prompt."""
    wanted = server.chat([image_part(1), text_part("What does the sign say?")])
    told = ask(server, [{"role": "user", "content": [IMAGE, QUESTION]}])
    assert told.output_text == wanted.choices[0].message.content and told.id.startswith("resp_")
    assert told.usage.input_tokens == wanted.usage.prompt_tokens
    assert told.usage.output_tokens == wanted.usage.completion_tokens
    assert told.usage.input_tokens_details.image_tokens > 0
    assert (told.status, told.store, told.error) == ("completed", False, None)


@pytest.mark.parametrize("field", ["file_data", "file_url"])
def test_a_file_is_read_as_by_chat(server: RunningServer, field: str) -> None:
    """Red when its pages are not seen, or what is wrong with it is not told by its name."""
    data = picture_pdf(Image.open(DEMO / "sign.png"))
    wanted = server.chat([file_part(data), text_part("What does the sign say?")], max_tokens=20)
    file = {"type": "input_file", field: data_url(data, "application/pdf"), "filename": "sign.pdf", "detail": "auto"}
    told = ask(server, [{"role": "user", "content": [file, QUESTION]}], max_output_tokens=20)
    assert told.output_text == wanted.choices[0].message.content and "PIANO" in told.output_text
    assert told.usage.input_tokens == wanted.usage.prompt_tokens
    output = {"type": "function_call_output", "call_id": "a", "output": [{**file, field: data_url(no_pages())}]}
    call = {"type": "function_call", "call_id": "a", "name": "zoom", "arguments": "{}"}
    with pytest.raises(openai.BadRequestError, match=r"PDF sign\.pdf cannot be read: it is damaged"):
        ask(server, [call, output])
    with pytest.raises(openai.BadRequestError, match=r"input\[0\]\.content\[0\]\.filename must be"):
        ask(server, [{"role": "user", "content": [{**file, "filename": "a\nb"}]}])


def test_a_turn_of_the_assistant_is_one_message(server: RunningServer) -> None:
    """Thoughts, text and calls are items; what tools gave may have images. Red when the prompt is not that of the same chat."""
    items: list[Any] = [
        {"role": "user", "content": "Look."},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]},
        {"type": "message", "role": "assistant", "id": "msg_1", "content": [{"type": "output_text", "text": "I look."}]},
        {"type": "function_call", "call_id": "a", "name": "zoom", "arguments": '{"x": 1}', "id": "fc_1", "status": "completed"},
        {"type": "function_call", "call_id": "b", "name": "zoom", "arguments": '{"x": 2}'},
        {"type": "function_call_output", "call_id": "a", "output": "nothing"},
        {"type": "function_call_output", "call_id": "b", "output": [IMAGE]},
    ]
    calls = [
        {"id": name, "type": "function", "function": {"name": "zoom", "arguments": json.dumps({"x": x})}}
        for name, x in (("a", 1), ("b", 2))
    ]
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Look."},
        {"role": "assistant", "content": "I look.", "reasoning_content": "Hm.", "tool_calls": calls},
        {"role": "tool", "content": "nothing", "tool_call_id": "a"},
        {"role": "tool", "content": [image_part(1)], "tool_call_id": "b"},
    ]
    function = {key: value for key, value in ZOOM.items() if key != "type"}
    tools = [{"type": "function", "function": function}]
    wanted = server.http.post("/tokenize", json={"messages": messages, "tools": tools}).json()
    assert ask(server, items, instructions="Be brief.", tools=[ZOOM]).usage.input_tokens == wanted["count"] > 100


def events(server: RunningServer, **fields: Any) -> list[dict[str, Any]]:
    """What a stream says, whose event lines must be the types."""
    response = server.http.post("/v1/responses", json={"stream": True, "temperature": 0, **fields})
    assert response.status_code == 200, response.text
    found = []
    for block in response.text.strip().split("\n\n"):
        name, data = block.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    return found


def test_events_of_a_text(server: RunningServer) -> None:
    found = events(server, input="Hello", max_output_tokens=5, ignore_eos=True)
    names = [event["type"].removeprefix("response.") for event in found]
    deltas = [event for event in found if event["type"].endswith(".delta")]
    assert names[:4] == ["created", "in_progress", "output_item.added", "content_part.added"]
    assert names[4:-4] == ["output_text.delta"] * len(deltas) and deltas
    assert names[-4:] == ["output_text.done", "content_part.done", "output_item.done", "incomplete"]
    text = "".join(event["delta"] for event in deltas)
    end = found[-1]["response"]
    assert found[-4]["text"] == end["output"][0]["content"][0]["text"] == text
    assert end["incomplete_details"] == {"reason": "max_output_tokens"} and end["output"][0]["status"] == "incomplete"
    assert {event["item_id"] for event in deltas} == {end["output"][0]["id"]} and end["usage"]["output_tokens"] == 5
    assert found[0]["response"]["id"] == end["id"] and found[0]["response"]["status"] == "in_progress"


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "zoom"}], ids=["required", "named"])
def test_a_call_whole_and_streamed(server: RunningServer, choice: Any) -> None:
    fields: dict[str, Any] = {"tools": [ZOOM], "tool_choice": choice, "parallel_tool_calls": False, "max_output_tokens": 100}
    (call,) = ask(server, "Look at x = 2.", **fields).output
    assert (call.type, call.name) == ("function_call", "zoom") and call.call_id.startswith("call_")
    assert json.loads(call.arguments)["x"] in (1, 2, 3)
    with server.openai.responses.stream(model=MODEL, input="Look at x = 2.", temperature=0, **fields) as stream:
        pieces = [event.delta for event in stream if event.type == "response.function_call_arguments.delta"]
        (final,) = stream.get_final_response().output
    assert "".join(pieces) == final.arguments == call.arguments  # type: ignore[union-attr]


def test_forms_and_log_probabilities(server: RunningServer) -> None:
    schema = {"type": "object", "properties": {"colour": {"enum": ["red", "blue"]}}, "required": ["colour"]}
    told = ask(server, text={"format": {"type": "json_schema", "name": "seen", "schema": schema}}, max_output_tokens=60)
    assert json.loads(told.output_text)["colour"] in ("red", "blue")
    assert told.text.format.type == "json_schema" and told.text.format.schema_ == schema
    told = ask(
        server, top_logprobs=2, include=["message.output_text.logprobs"], max_output_tokens=3, extra_body={"ignore_eos": True}
    )
    shown = told.output[0].content[0].logprobs
    assert len(shown) == 3 and all(len(entry.top_logprobs) == 2 for entry in shown)


@pytest.mark.parametrize(
    ("fields", "param", "instead"),
    [
        ({"store": True}, "store", "leave it out or send false"),
        ({"previous_response_id": "resp_1"}, "previous_response_id", "send the whole conversation in input"),
        ({"background": True}, "background", "use stream"),
        ({"conversation": "conv"}, "conversation", "send the whole of it"),
        ({"truncation": "auto"}, "truncation", "Shorten the input"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type", "tools of type 'function'"),
        ({"reasoning": {"effort": "high"}}, "reasoning.effort", "leave it out"),
        ({"text": {"verbosity": "low"}}, "text.verbosity", "system message"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type", "Send messages"),
        ({"input": [{"role": "user"}]}, "input[0].content", "is missing"),
        ({"input": [{"role": "user", "content": "x", "output": "y"}]}, "input[0].output", "is not supported"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
            "input[0].content[0].image_url",
            "no 'image_url'",
        ),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}]},
            "input[0].content[0].file_id",
            "send image_url",
        ),
        (
            {"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}]},
            "input[0].content[0].file_id",
            "file_data or file_url",
        ),
        (
            {"input": [{"role": "user", "content": [{"type": "input_file", "filename": "x.pdf"}]}]},
            "input[0].content[0]",
            "either 'file_data' or 'file_url'",
        ),
        (
            {"input": [{"role": "user", "content": [{"type": "input_file", "file_url": "data:,", "detail": "low"}]}]},
            "input[0].content[0].detail",
            "max_pixels",
        ),
        ({"media_io_kwargs": {"video": {"fps": 0}}}, "fps", "above 0"),
        ({"max_output_tokens": 10**6}, "max_output_tokens", "at most 32768"),
        ({"tempreature": 1}, "tempreature", "is not supported"),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, dict) else None,
)
def test_refusals_name_the_field_and_what_to_use(server: RunningServer, fields: Any, param: str, instead: str) -> None:
    """In the words of this API. Red when a field is ignored, or called by its name in a chat."""
    response = server.http.post("/v1/responses", json={"input": "Hello", "max_output_tokens": 1, **fields})
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, param), error
    assert instead in error["message"] and "messages" not in error["message"].replace("Send messages", "")


def test_what_is_wrong_with_content_is_told_by_its_place(server: RunningServer) -> None:
    with pytest.raises(openai.BadRequestError, match=r"input\[1\]\.content\[0\]\.text contains '<\|image_pad\|>'"):
        ask(server, [{"role": "user", "content": "x"}, {"role": "user", "content": [{**QUESTION, "text": "<|image_pad|>"}]}])
